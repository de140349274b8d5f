"""The dashboard: a Streamlit app over a folder of runs. Only this folder and `app.py` import streamlit."""
