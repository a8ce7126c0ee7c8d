"""Takes an object as JSON, sets fields (`/spec/replicas=3 && /spec/suspend=true`), gives it back."""

import json
import sys

thing = json.load(sys.stdin)
for edit in sys.argv[1].split(" && "):
    pointer, value = edit.split("=", 1)
    *parents, last = pointer.strip("/").split("/")
    place = thing
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
    if isinstance(place, list):
        place[int(last)] = json.loads(value)
    else:
        place[last] = json.loads(value)
json.dump(thing, sys.stdout)
