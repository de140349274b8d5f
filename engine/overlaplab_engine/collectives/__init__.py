"""All-reduces by hand, of messages between neighbours alone: `ring` and `tree`.

They work in place of the library's on the ranks of a `Communicator`, block until they are done, and label every hop.
A call of `Communicator.aside` runs one beside the computation.
"""
