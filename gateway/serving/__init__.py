"""The corridor between client and backend: the order of the steps that a request takes, whatever its backend speaks.

    gateway      every request, from its head to its record; where it goes
    inference    an inference: read, parse, send, decode, reply
    speech       how an inference is put to a backend, and how to one of V2
    foreign      how an inference is put to a backend of another dialect
    relaying     what crosses as it came: requests that are no inferences, uploads, answers
    passing      inferences that cross to servers that read binary
    own_answers  what the gateway answers itself, where a server cannot
    call         what these have in common: asking the backend, passing its answer on, wording its errors

Not here: how a step is done. `client` reads and writes, `codec` converts, `policy` decides, `backend` calls.
"""
