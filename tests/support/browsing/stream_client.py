"""A user of the app without a browser: speaks to the server as Streamlit's page does, over its websocket."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import connect


class User:
    """One session. `show` runs the script for a page and returns what it draws."""

    def __init__(self, address: str) -> None:
        place = urlsplit(address)
        self._connection = connect(
            f"ws://{place.netloc}/_stcore/stream",
            origin=address,  # type: ignore[arg-type]
            subprotocols=["streamlit"],  # type: ignore[list-item]
            max_size=None,
            ping_interval=None,  # a busy server answers late
        )

    def __enter__(self) -> User:
        self._socket = self._connection.__enter__()
        return self

    def __exit__(self, *ended: Any) -> None:
        self._connection.__exit__(*ended)

    def show(self, page: str, query: str = "") -> list[Any]:
        """The elements that a page sends, in order; raises AssertionError where the script ends otherwise than well."""
        asked = BackMsg()
        asked.rerun_script.page_name = page
        asked.rerun_script.query_string = query
        self._socket.send(asked.SerializeToString())
        found = []
        while True:
            told = ForwardMsg()
            told.ParseFromString(self._socket.recv(timeout=600))
            kind = told.WhichOneof("type")
            if kind == "delta" and told.delta.WhichOneof("type") == "new_element":
                found.append(told.delta.new_element)
            if kind == "script_finished":
                assert told.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY, told.script_finished
                assert not any(element.WhichOneof("type") == "exception" for element in found)
                return found


def words(elements: list[Any]) -> str:
    """What a page's texts, headings and code say."""
    said = []
    for element in elements:
        kind = element.WhichOneof("type")
        if kind in ("text", "heading", "code"):
            one = getattr(element, kind)
            said.append(getattr(one, "body", "") or getattr(one, "code_text", ""))
    return "\n".join(said)
