"""The corridor between client and backend: the order of the steps that a request takes, whatever its backend speaks.

    gateway      every request, from its head to its record; where it goes
    inference    an inference: read, parse, send, decode, reply
    speech       how an inference is put to a backend, and how to one of V2
    foreign      how an inference is put to a backend of another dialect
    batching     several inferences for one model that go to the server as one
    relaying     requests that are no inferences, and uploads and answers that cross unchanged
    passing      binary inferences for servers that read binary
    own_answers  answers of the gateway itself, where a server has none
    one_server   answers for all backends together, on paths of no model
    call         steps that all of these share: choosing a backend, asking it, wording its errors

The steps themselves are elsewhere: `client` reads and writes, `codec` converts, `policy` decides, `backend` calls.
"""
