"""The app and what a user does with it: in Chromium, over its websocket, or without either."""
