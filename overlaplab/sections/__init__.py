"""What a page shows: its sentences, charts and tables in order, composed once for the HTML report and the dashboard.

All is plain data: who draws it decides on the theme, and adds what a reader can do with it there.
"""
