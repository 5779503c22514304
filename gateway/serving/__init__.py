"""The corridor between client and backend: the order of the steps that a request takes, whatever its backend speaks.

    gateway      every request, from its head to its record; where it goes
    inference    an inference: read, parse, send, decode, reply
    speech       how an inference is put to a backend of V2
    foreign      how an inference is put to a backend of another dialect
    batching     several inferences for one model that go to the server as one
    relaying     what crosses unchanged: requests that are no inferences, and inferences for servers that read binary
    own_answers  answers of the gateway itself, where a server has none, or for all backends together
    call         steps that all of these share: choosing a backend, asking it, wording its errors

The steps themselves are elsewhere: `client` reads and writes, `codec` converts, `policy` decides, `backend` calls.
"""
