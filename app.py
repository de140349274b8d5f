"""The dashboard for `streamlit run app.py -- DIR`; `overlaplab app DIR` starts the same."""

from overlaplab.dashboard.main import main

main()
