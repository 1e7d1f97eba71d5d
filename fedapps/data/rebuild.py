"""Rebuild the embedded data from the packages that it comes from.

    python -m fedapps.data.rebuild OUT [--packages DIR]

Needs npm, apt-get and dpkg-deb (Debian 12 has wordnet-base 3.0) and ``pip install resvg-py==0.5.0``; nothing
else of fedapps needs them. Writes OUT/emoji and OUT/glosses and says how far they are from the files that
are shipped. The glosses, the concepts, their split and the indices come out equal.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import random
import re
import subprocess
import tarfile
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

TILE, COLUMNS, RENDER = 32, 32, 128  # pixels of a tile, tiles of a sheet's row, pixels of a rendering
OPENMOJI = "openmoji@17.0.0"
ICONIFY = {
    "twemoji": "@iconify-json/twemoji@1.2.5",
    "noto": "@iconify-json/noto@1.2.9",
    "fluent-emoji-flat": "@iconify-json/fluent-emoji-flat@1.2.6",
    "emojione": "@iconify-json/emojione@1.2.3",
    "noto-v1": "@iconify-json/noto-v1@1.2.5",
}
NAMED_BY_OTHERS = ("emojione", "noto-v1")  # sets without a code point table: found by the names of other sets
# emojione draws "cricket" as the game, not the insect; the set has no two of the keycaps under its own names.
LEFT_OUT = {("emojione", name) for name in ("cricket", "keycap: #", "keycap: *")}
LAYERS = {
    "color": 1,
    "color-foreground": 1,
    "skin": 2,
    "skin-shadow": 2,
    "hair": 3,
    "line": 4,
    "line-supplement": 4,
}
CLASSES = ["artifact", "person", "plant", "animal", "act", "communication", "location", "substance", "food", "body"]
LEXNAMES = {  # the noun files of WordNet's lexnames(5) that the classes are
    "04": "act",
    "05": "animal",
    "06": "artifact",
    "08": "body",
    "10": "communication",
    "13": "food",
    "15": "location",
    "18": "person",
    "20": "plant",
    "27": "substance",
}


# --------------------------------------------------------------------------------------- packages


def npm(package: str, folder: Path) -> Path:
    """The unpacked folder of an npm package, downloaded if it is not in ``folder`` yet."""
    target = folder / re.sub(r"[@/]+", "-", package).strip("-")
    if not target.is_dir():
        packed = subprocess.run(
            ["npm", "pack", "--silent", package], cwd=folder, check=True, capture_output=True, text=True
        )
        with tarfile.open(folder / packed.stdout.split()[-1]) as archive:
            archive.extractall(target, filter="data")
    return target / "package"


def wordnet(folder: Path) -> Path:
    """WordNet's ``data.noun`` from the Debian package, downloaded if it is not in ``folder`` yet."""
    if not (folder / "wordnet").is_dir():
        subprocess.run(["apt-get", "download", "wordnet-base"], cwd=folder, check=True)
        package = next(folder.glob("wordnet-base*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder / "wordnet")], check=True)
    return folder / "wordnet/usr/share/wordnet/data.noun"


# ----------------------------------------------------------------------------------------- emoji


def choose(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The concepts, in OpenMoji's order: one per meaning, a quarter of the country flags, a fifth held out."""
    rows = [row for row in table if _own_meaning(row)]
    flags = [row["hexcode"] for row in rows if row["subgroups"] == "country-flag"]
    left_out = set(flags) - set(flags[::4])
    concepts = [
        {
            "hex": row["hexcode"],
            "name": row["annotation"],
            "tags": row["tags"].split(", "),
            "group": row["group"],
            "subgroup": row["subgroups"],
            "author": row["openmoji_author"],
            "test": False,
        }
        for row in rows
        if row["hexcode"] not in left_out
    ]
    by_subgroup = defaultdict(list)
    for concept in concepts:
        by_subgroup[concept["subgroup"]].append(concept)
    rng = np.random.default_rng(0)
    for members in by_subgroup.values():
        order = rng.permutation(len(members))
        for position in order[: round(0.2 * len(members)) if len(members) >= 4 else 0]:
            members[position]["test"] = True
    return concepts


def _own_meaning(row: dict[str, Any]) -> bool:
    """No variant of another: skin tones, gendered and family sequences, facing right, components, extras."""
    codes = row["hexcode"].split("-")
    joined = "200D" in codes
    gendered = joined and (codes[0] in ("1F468", "1F469") or {"2640", "2642"} & set(codes))
    turned = joined and "27A1" in codes
    paired = "1F91D" in codes and joined  # people holding hands, beside 1F46B to 1F46D
    own = row["group"] != "component" and not row["group"].startswith("extras")
    return own and not (row["skintone"] or gendered or turned or paired)


def icon_svgs(package: Path, names: dict[str, list[str]]) -> dict[str, str]:
    """hex -> SVG of an Iconify set, for each concept of ``names`` (hex -> names to try, in order)."""
    icons = json.loads((package / "icons.json").read_text("utf-8"))
    aliases, found = icons.get("aliases", {}), {}
    for code, tries in names.items():
        for name in tries:
            icon = icons["icons"].get(aliases.get(name, {}).get("parent", name))
            if icon is not None:
                width, height = icon.get("width", icons["width"]), icon.get("height", icons["height"])
                box = f"{icon.get('left', 0)} {icon.get('top', 0)} {width} {height}"
                space = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
                found[code] = f'<svg {space} viewBox="{box}">{icon["body"]}</svg>'
                break
    return found


def code_points(package: Path) -> dict[str, str]:
    """hex without variation selectors -> icon name, as far as an Iconify set says."""
    return {_plain(code): name for code, name in json.loads((package / "chars.json").read_text("utf-8")).items()}


def _plain(code: str) -> str:
    return "-".join(part for part in code.lower().split("-") if part != "fe0f")


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def render(svg: str) -> Image.Image:
    """An SVG as a 128×128 RGBA picture; one that is not square is put in the middle."""
    import resvg_py

    png = resvg_py.svg_to_bytes(svg_string=svg, width=RENDER, height=RENDER)
    image, canvas = Image.open(io.BytesIO(png)), Image.new("RGBA", (RENDER, RENDER))
    canvas.paste(image, ((RENDER - image.width) // 2, (RENDER - image.height) // 2))
    return canvas


def picture(image: Image.Image) -> np.ndarray:
    """uint8 ``[32, 32, 3]``: over white."""
    half = image.reduce(2)
    white = Image.new("RGB", half.size, "white")
    white.paste(half, mask=half.getchannel("A"))
    return np.asarray(white.reduce(2))


def mask(image: Image.Image) -> np.ndarray:
    """bool ``[32, 32]``: where the picture covers at least half of the pixel."""
    return np.asarray(image.getchannel("A").reduce(2).reduce(2)) > 127


def layers(svg: str) -> np.ndarray:
    """uint8 ``[32, 32]`` of an OpenMoji SVG: 0 background, 1 fill, 2 skin, 3 hair, 4 line; the topmost counts."""
    ET.register_namespace("", "http://www.w3.org/2000/svg")
    root = ET.fromstring(svg)
    groups = [child for child in root if child.get("id") in LAYERS]
    found = np.zeros((RENDER // 2, RENDER // 2), np.uint8)
    for group in groups:
        alone = ET.Element(root.tag, root.attrib)
        alone.extend(child for child in root if child is group or child not in groups)
        alpha = render(ET.tostring(alone, encoding="unicode")).getchannel("A").reduce(2)
        found[np.asarray(alpha) > 127] = LAYERS[group.get("id", "")]
    return found[::2, ::2]


def sheet(tiles: list[np.ndarray]) -> Image.Image:
    """Tiles in rows of 32, the rest black; colours cut to a palette of 256."""
    rows = -(-len(tiles) // COLUMNS)
    canvas = np.zeros((rows * COLUMNS, *tiles[0].shape), tiles[0].dtype)
    canvas[: len(tiles)] = tiles
    grid = canvas.reshape(rows, COLUMNS, TILE, TILE, -1).swapaxes(1, 2).reshape(rows * TILE, COLUMNS * TILE, -1)
    image = Image.fromarray(grid.squeeze(-1) if grid.shape[-1] == 1 else grid)
    return image.quantize(256, dither=Image.Dither.NONE) if image.mode == "RGB" else image


def base64_png(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def rebuild_emoji(packages: Path, out: Path) -> None:
    """``concepts.jsonl`` and one JSON per vendor: the indices of its concepts, pictures, masks (and layers)."""
    out.mkdir(parents=True, exist_ok=True)
    openmoji = npm(OPENMOJI, packages)
    concepts = choose(json.loads((openmoji / "data/openmoji.json").read_text("utf-8")))
    write_lines(out / "concepts.jsonl", concepts)
    sets = {vendor: npm(package, packages) for vendor, package in ICONIFY.items()}
    tables = {vendor: code_points(package) for vendor, package in sets.items()}
    svgs = {"openmoji": {c["hex"]: (openmoji / f"color/svg/{c['hex']}.svg").read_text("utf-8") for c in concepts}}
    for vendor, package in sets.items():
        known = ("noto", "twemoji") if vendor in NAMED_BY_OTHERS else (vendor,)
        names = {
            c["hex"]: ([slug(c["name"])] if vendor in NAMED_BY_OTHERS else [])
            + [tables[other].get(_plain(c["hex"]), "") for other in known]
            for c in concepts
            if (vendor, c["name"]) not in LEFT_OUT
        }
        svgs[vendor] = icon_svgs(package, names)
    for vendor, found in svgs.items():
        index = [i for i, concept in enumerate(concepts) if concept["hex"] in found]
        images = [render(found[concepts[i]["hex"]]) for i in index]
        entry = {
            "vendor": vendor,
            "concepts": index,
            "images": base64_png(sheet([picture(image) for image in images])),
            "masks": base64_png(sheet([mask(image) for image in images])),
        }
        if vendor == "openmoji":
            entry["parts"] = base64_png(sheet([layers(found[concepts[i]["hex"]]) for i in index]))
        write_lines(out / f"{vendor}.json", [entry])


# --------------------------------------------------------------------------------------- glosses


def rebuild_glosses(packages: Path, out: Path) -> None:
    """``train.jsonl`` and ``test.jsonl``: 800 and 200 definitions of each class, without their usage examples."""
    out.mkdir(parents=True, exist_ok=True)
    glosses = defaultdict(set)
    for line in wordnet(packages).read_text("latin-1").splitlines():
        if not line.startswith(" "):  # the licence stands in the file's indented head
            fields, gloss = line.split("|", 1)
            glosses[LEXNAMES.get(fields.split()[1], "")].add(gloss.strip().split('; "')[0])
    rng, rows = random.Random(0), []
    for label in CLASSES:
        texts = sorted(glosses[label])
        rng.shuffle(texts)
        rows += [(label, text, i < 800) for i, text in enumerate(texts[:1000])]
    rng.shuffle(rows)
    for name, wanted in (("train", True), ("test", False)):
        write_lines(out / f"{name}.jsonl", ({"label": c, "text": t} for c, t, train in rows if train is wanted))


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


# --------------------------------------------------------------------------------------- compare


def compare(built: Path, shipped: Path) -> Iterable[str]:
    """One line a file: equal, or the share of equal pixels and the mean difference in grey levels."""
    for path in sorted([*shipped.glob("*/*.json"), *shipped.glob("*/*.jsonl")]):
        other = built / path.relative_to(shipped)
        if path.suffix == ".jsonl":
            yield f"{path.name}: {'equal' if path.read_bytes() == other.read_bytes() else 'DIFFERENT'}"
            continue
        old, new = (json.loads(p.read_text("utf-8")) for p in (path, other))
        parts = [f"index {'equal' if old['concepts'] == new['concepts'] else 'DIFFERENT'}"]
        for key in ("images", "masks", "parts"):
            if key in old:
                a, b = (
                    np.asarray(image.convert("RGB") if key == "images" else image).astype(int)
                    for image in (Image.open(io.BytesIO(base64.b64decode(e[key]))) for e in (old, new))
                )
                if a.shape != b.shape:
                    parts.append(f"{key}: shape {b.shape}, not {a.shape}")
                    continue
                equal, difference = (a == b).mean(), abs(a - b).mean()
                parts.append(f"{key}: {equal:.5f} of the values equal, mean difference {difference:.4f}")
        yield f"{path.name}: {'; '.join(parts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Rebuild the embedded data from the packages that it comes from.")
    parser.add_argument("out", type=Path, help="folder to write emoji/ and glosses/ to")
    parser.add_argument("--packages", type=Path, help="folder for the downloaded packages (default: OUT/packages)")
    given = parser.parse_args()
    packages = given.packages or given.out / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    rebuild_emoji(packages, given.out / "emoji")
    rebuild_glosses(packages, given.out / "glosses")
    print("\n".join(compare(given.out, Path(__file__).parent)))


if __name__ == "__main__":
    main()
