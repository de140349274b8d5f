"""What each Python that tests start runs first, as tests/conftest.py does for itself: jsonschema, which altair imports,
compiles a grammar of addresses for a second where Jupyter has brought `rfc3987_syntax`, and no chart needs that.
"""

import sys

sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
