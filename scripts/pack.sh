#!/bin/sh
# Packs a folder into at most four files of at most 12 MiB, to be brought home from a machine that gives back little:
#
#   scripts/pack.sh FOLDER RESULTS     writes RESULTS/NAME.tar.0, NAME.tar.1 and so on, NAME being that of the folder
#   cat NAME.tar.? | tar x             unpacks them
#
# The smallest files come first, so what is cut off beyond 48 MiB are the largest traces.
set -e
folder=$1
results=$2
name=$(basename "$folder")
most=${MOST_BYTES:-50331648}

new="$results/.new.$$"
rm -rf "$results"/.new.*
mkdir -p "$new"
(cd "$(dirname "$folder")" && find "$name" -type f -printf '%s %p\n' | sort -n | cut -d ' ' -f 2- | tar --warning=no-file-changed -cf - -T -) |
    head -c "$most" | split -b $(((most + 3) / 4)) -a 1 -d - "$new/$name.tar."
# Only now does the older packing go: whoever is ended meanwhile leaves it whole.
rm -f "$results/$name.tar".?
mv "$new/$name.tar".? "$results/"
rmdir "$new"
packed=$(cat "$results/$name.tar".? | wc -c)
if [ "$packed" -ge "$most" ]; then
    echo "$name: only the first $most bytes are packed; the largest files are cut off" >&2
fi
