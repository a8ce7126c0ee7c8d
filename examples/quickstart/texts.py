"""What is to see in the quickstart's photographs, as captions and questions with answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class View:
    """A part of a photograph and what can be said about it. `box` is left, top, right, bottom as fractions."""

    subject: str
    name: str
    photo: str
    box: tuple[float, float, float, float]
    what: str
    captions: tuple[str, ...]
    questions: tuple[tuple[str, str], ...]


VIEWS = [
    View(
        "astronaut", "portrait", "astronaut.png", (0, 0, 1, 1), "an astronaut in an orange pressure suit",
        ("An astronaut smiles at the camera in an orange pressure suit.", "A portrait of an astronaut between a flag and a model of a space shuttle.",
         "A woman in an orange flight suit holds a white helmet with a black visor."),
        (("What colour is the suit?", "The suit is bright orange."), ("What stands in the background on the right?", "A model of a space shuttle with its tank and boosters."),
         ("What is on the left?", "A flag of the United States."), ("Is the person wearing a helmet?", "No, the helmet is held in front; only the dark neck ring is closed."),
         ("Where was this probably taken?", "In a photo studio: the backdrop is a mottled grey cloth.")),
    ),
    View(
        "astronaut", "face", "astronaut.png", (0.22, 0, 0.68, 0.5), "the smiling face of an astronaut above a dark neck ring",
        ("A close view of an astronaut's smiling face.", "A woman with short fair hair looks into the camera and smiles."),
        (("What is the person's expression?", "She is smiling."), ("What is around the neck?", "The wide dark ring to which the helmet is locked."),
         ("How long is the hair?", "Short; it ends above the collar."), ("What is the background like?", "Light grey, without sharp detail.")),
    ),
    View(
        "astronaut", "shuttle", "astronaut.png", (0.62, 0, 1, 0.55), "a model of a space shuttle on its tank",
        ("A model of a space shuttle stands upright on a black table.", "A shuttle, a brown tank and white boosters, as a model."),
        (("What is the model of?", "A space shuttle with its external tank and two boosters."), ("Which way does it point?", "Straight up, as on the launch pad."),
         ("What colour is the tank?", "Brown, almost orange."), ("What does it stand on?", "On a stand covered with black cloth.")),
    ),
    View(
        "astronaut", "helmet", "astronaut.png", (0.5, 0.6, 1, 1), "a white helmet with a black visor",
        ("A white space helmet with a closed black visor.", "A shiny black visor reflects a lamp."),
        (("What colour is the visor?", "Black, and so shiny that a lamp is mirrored in it."), ("What is the helmet's shell made to look like?", "It is smooth and white."),
         ("What is next to the helmet?", "A part of an orange suit with white straps.")),
    ),
    View(
        "cat", "face", "chelsea.png", (0, 0, 1, 1), "a tabby cat that looks to the side",
        ("A tabby cat with green eyes looks past the camera.", "The face of a brown and ginger cat fills the picture.", "A cat rests its head and watches something on the right."),
        (("What animal is it?", "A cat with a brown and ginger tabby coat."), ("What colour are the eyes?", "Green, with a yellow tint."),
         ("What does the coat look like?", "Dark stripes run over the forehead; cheeks and chin are pale."), ("Is the cat outdoors?", "Probably not: behind it there is something soft and white, out of focus."),
         ("Are both ears in the picture?", "Only parts of them; the tips are cut off at the top.")),
    ),
    View(
        "cat", "eyes", "chelsea.png", (0.25, 0.22, 0.85, 0.6), "the green eyes of a cat",
        ("Two green cat's eyes, close up.", "A cat's eyes and the bridge of its nose."),
        (("How many eyes can be seen?", "Two."), ("What shape are the pupils?", "Upright ovals, since there is a good deal of light."), ("What is between the eyes?", "The bridge of the nose, ginger in colour.")),
    ),
    View(
        "cat", "nose", "chelsea.png", (0.35, 0.5, 0.95, 1), "a cat's nose and whiskers",
        ("A cat's nose with long white whiskers.", "The muzzle of a tabby cat."),
        (("What colour is the nose?", "Brick red with a dark rim."), ("What are the thin white lines?", "Whiskers; a cat feels its way with them."), ("What colour is the chin?", "Almost white.")),
    ),
    View(
        "temple", "tower", "china.jpg", (0, 0, 1, 1), "a Chinese tower of several storeys above a lake",
        ("A tower with orange roofs stands among trees above a lake.", "A Chinese pagoda with red pillars on a hill, water behind it.", "A view from a hill: a tower of several storeys, trees and a wide lake."),
        (("What colour are the roof tiles?", "Orange, with green edges."), ("What lies behind the tower?", "A wide lake with an island and hazy land beyond."),
         ("What is the weather like?", "Fine; the sky is pale blue with thin cloud."), ("What stands in front of the tower?", "Trees and bushes hide its foot."),
         ("What shape is the tower?", "It has eight sides, and each storey has a roof of its own.")),
    ),
    View(
        "temple", "roof", "china.jpg", (0.1, 0.05, 0.55, 0.5), "the pointed roof of a Chinese tower",
        ("The top of a pagoda with a golden knob.", "Orange tiles and red woodwork under a pale sky."),
        (("What is at the very top?", "A golden knob."), ("What colour is the woodwork?", "Dark red."), ("How do the corners of the roof end?", "They are turned up a little.")),
    ),
    View(
        "temple", "lake", "china.jpg", (0.5, 0.35, 1, 0.75), "a lake in the haze, framed by trees",
        ("A hazy lake seen between trees.", "Water, an island far away, and a dark tree on the right."),
        (("Can the far shore be seen?", "Faintly; it fades into the haze."), ("What are the small specks on the water?", "Boats, most likely."), ("Is the water rough?", "No, it is calm.")),
    ),
    View(
        "temple", "trees", "china.jpg", (0, 0.55, 1, 1), "the tops of trees at the foot of a tower",
        ("Tree tops around the lower storeys of a tower.", "Green and greyish trees on a hillside."),
        (("Are the trees bare?", "No, they are in leaf."), ("What rises out of the trees?", "The lower storeys of a tower with red pillars."), ("Which colours do the trees have?", "Green, and a greyish green on the right.")),
    ),
    View(
        "coffee", "cup", "coffee.png", (0, 0, 1, 1), "a red cup of espresso on a wooden table",
        ("A red cup of espresso with its saucer and spoon on a wooden table.", "An espresso in a red cup, seen from above at a slant.", "A small spoon lies beside a cup of coffee."),
        (("What is in the cup?", "Espresso with a light brown crema."), ("What colour are cup and saucer?", "Dark red; the inside of the cup is white."), ("What is the table made of?", "Wood, with a strong grain."),
         ("Where is the spoon?", "On the saucer, to the right of the cup."), ("Is the cup full?", "No, about a third of it is filled.")),
    ),
    View(
        "coffee", "spoon", "coffee.png", (0.45, 0.4, 0.75, 0.9), "a small spoon on a red saucer",
        ("A metal spoon on a red saucer.", "A tea spoon leans against a red cup."),
        (("What is the spoon made of?", "Polished metal; the room is mirrored in it."), ("Has the spoon been used?", "It looks clean."), ("What lies under the spoon?", "A red saucer.")),
    ),
    View(
        "coffee", "crema", "coffee.png", (0.26, 0.03, 0.7, 0.6), "the crema on an espresso",
        ("The crema of an espresso in a white-lined cup.", "Looking down into a small cup of coffee."),
        (("What colour is the coffee?", "Golden brown on top."), ("What does the ring on the inside of the cup tell?", "That the coffee once stood a little higher."), ("What colour is the rim?", "Creamy white.")),
    ),
    View(
        "coffee", "table", "coffee.png", (0.62, 0, 1, 0.75), "the grain of a wooden table",
        ("A wooden table with deep grain.", "Warm brown wood beside the edge of a red saucer."),
        (("What material is it?", "Wood."), ("Is the surface smooth?", "Not quite: the grain is deep and there are scratches."), ("What is at the left edge?", "The rim of a red saucer.")),
    ),
    View(
        "galaxies", "field", "hubble_deep_field.jpg", (0, 0, 1, 1), "thousands of galaxies on a black sky",
        ("A deep view of the sky with thousands of galaxies.", "Small galaxies of many colours, scattered over a black sky.", "A long exposure of a tiny part of the sky, taken from orbit."),
        (("What are the small coloured spots?", "Galaxies; nearly every spot is one."), ("Why do some look red?", "Mostly because they are very far away and their light is stretched."),
         ("What took the picture?", "A space telescope, since no air blurs it."), ("Are there many stars in the picture?", "Few; a star shows by the cross of light around it."), ("What colour is the background?", "Black.")),
    ),
    View(
        "galaxies", "middle", "hubble_deep_field.jpg", (0.35, 0.35, 0.85, 0.8), "galaxies large and small on a dark sky",
        ("Yellow, blue and red galaxies on a dark sky.", "A part of a deep field: some galaxies are round, others long."),
        (("Do all galaxies have the same shape?", "No: some are round, some are seen from the edge and look like a dash."), ("Which colours occur?", "White, yellow, orange, red and blue."), ("Which object is the largest?", "A yellow, round galaxy.")),
    ),
    View(
        "galaxies", "corner", "hubble_deep_field.jpg", (0.15, 0.02, 0.6, 0.4), "a corner of the sky with red and blue galaxies",
        ("A corner of a deep field with a bright red galaxy.", "Dots and dashes of light: galaxies, near and far."),
        (("What stands out?", "A bright orange and red spot."), ("Is there any land to see?", "No, only the sky."), ("Are the spots sharp?", "Yes, though many are only a few pixels wide.")),
    ),
    View(
        "rocket", "pad", "rocket.jpg", (0, 0, 1, 1), "a rocket on its pad at dusk between four towers",
        ("A white rocket stands on its pad at dusk.", "A rocket waits between lattice towers; lamps glow at its foot.", "A launch pad in the evening with a slim white rocket."),
        (("What time of day is it?", "Dusk or dawn: the sky is dark blue and the lamps are lit."), ("How many towers stand around the rocket?", "Four, two near and two farther away."),
         ("What are the towers for?", "They carry wires that catch lightning."), ("Has the rocket taken off?", "No, it stands still and there is no smoke."), ("What colour is the rocket?", "White.")),
    ),
    View(
        "rocket", "rocket", "rocket.jpg", (0.38, 0.25, 0.62, 1), "a slim white rocket on its pad",
        ("A slim white rocket, ready to be launched.", "A rocket with a wider nose stands upright in the evening."),
        (("Which part is the widest?", "The nose, where the cargo is."), ("What is behind the rocket?", "Only the dark blue sky and some low cloud."), ("Does it lean?", "No, it stands upright.")),
    ),
    View(
        "rocket", "lamps", "rocket.jpg", (0.08, 0.7, 0.78, 1), "the lamps of a launch pad",
        ("Lamps with long rays light a launch pad.", "A row of bright lamps near the ground at dusk."),
        (("Why do the lamps look like stars?", "The small opening of the lens spreads their light into rays."), ("What colour is the light?", "Yellow, almost golden; some lamps are white."), ("What lies above the lamps?", "A band of cloud and the evening sky.")),
    ),
    View(
        "rocket", "tower", "rocket.jpg", (0, 0, 0.34, 1), "a lattice tower beside a launch pad",
        ("A tall lattice tower against the evening sky.", "Steel lattice, lamps at its foot, and a dark blue sky."),
        (("What is the tower built of?", "Of steel bars that cross each other."), ("Is the tower's top in the picture?", "Not that of the near one; it goes on above the edge."), ("What is behind it?", "A second, smaller tower and the sky.")),
    ),
]

FACTS: list[tuple[str, str]] = [
    ("Why is the sky blue?", "Air scatters blue light more than red light, so blue reaches us from every side."),
    ("What is crema?", "The light brown foam on an espresso. Hot water under pressure drives gas and oil out of the ground coffee."),
    ("What is a pagoda?", "A tower of several storeys, each with a roof of its own, common in East Asia."),
    ("How far is the Moon?", "About 384,000 kilometres on average."),
    ("Why do cats have whiskers?", "They feel with them, in the dark and in narrow places."),
    ("Write a line of Python that adds up a list.", "`total = sum(values)`"),
    ("What is a galaxy?", "A great many stars, gas and dust, held together by gravity. Ours has more than a hundred thousand million stars."),
    ("Name three things that burn in a rocket engine.", "1. Kerosene\n2. Hydrogen\n3. Methane\n\nEach needs oxygen, which the rocket carries along."),
    ("Translate \"good morning\" into French and German.", "French: bonjour. German: guten Morgen."),
    ("What does JPEG throw away?", "Mostly fine detail of colour, which the eye hardly misses."),
    ("Is a tomato a fruit?", "In botany yes, it grows from a flower; in the kitchen it is a vegetable."),
    ("How do I take a photograph at dusk?", "Use a tripod, a long exposure and a small opening. Then lamps become stars and nothing is blurred."),
    ("What is a tabby?", "Not a breed but a pattern: stripes, spots or swirls, and an M on the forehead."),
    ("Explain orbit in one sentence.", "To be in orbit is to fall round the Earth so fast sideways that you keep missing it."),
    ("Which is larger, 0.9 or 0.11?", "0.9, because nine tenths are more than eleven hundredths."),
]

SYSTEMS = [
    "You describe pictures for people who cannot see them.",
    "Answer in one short sentence.",
    "You are a careful assistant. Say only what the picture shows.",
    "You teach physics to children of ten years.",
]
