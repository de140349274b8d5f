#!/bin/sh
# Makes sure that the browser tests find Chromium: installs Debian's where that is allowed, else says how to.
command -v chromium >/dev/null && exit 0
how="the browser tests need Chromium: install it with 'sudo apt-get install chromium', then run make test again"
command -v apt-get >/dev/null || { echo "$how" >&2; exit 1; }
if [ "$(id -u)" = 0 ]; then sudo=""; elif sudo -n true 2>/dev/null; then sudo="sudo -n"; else echo "$how" >&2; exit 1; fi
$sudo apt-get update -q && $sudo apt-get install -y -q --no-install-recommends chromium || { echo "$how" >&2; exit 1; }
