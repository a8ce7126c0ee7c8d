//! Equality with the real processor: every golden picture and setting, 0 differing values.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::PathBuf;

use feedmill_vision::{
    ColorPolicy, Geometry, Grid, ImageError, ImageLimits, Scratch, decode_rgb, fill_patches,
    normalisation_lut, normalisation_lut_bf16, patches_to_rgb, read_header, smart_resize,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

fn golden(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden")).join(path)
}

fn json(path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden(path)).unwrap()).unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The golden configs say only what differs; the rest is what every checkpoint's file says.
fn geometry(config: &Value) -> Geometry {
    let mut config = config.clone();
    config["image_processor_type"] = "Qwen2VLImageProcessorFast".into();
    Geometry::from_preprocessor_config(&config).unwrap()
}

fn u64s(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

/// Grid, resized height and width, patches.
type Outcome = (Grid, (u32, u32), Vec<u8>);

/// Outcome of one image under one geometry: ok, or the class of the error.
fn outcome(bytes: &[u8], geometry: &Geometry, scratch: &mut Scratch) -> Result<Outcome, ImageError> {
    let policy = ColorPolicy::default();
    let header = read_header(bytes, &ImageLimits::default())?;
    let (width, height) = header.oriented_size(&policy);
    let resized = smart_resize(height, width, geometry)?;
    let grid = Grid::of(resized, geometry);
    let mut patches = vec![0xA5; grid.patch_bytes(geometry)];
    fill_patches(bytes, &header, resized, geometry, &policy, scratch, &mut patches)?;
    Ok((grid, resized, patches))
}

fn check_file(entry: &Value, configs: &Value, scratch: &mut Scratch) -> usize {
    let file = entry["file"].as_str().unwrap();
    let bytes = std::fs::read(golden(file)).unwrap();
    assert_eq!(sha256(&bytes), entry["sha256"].as_str().unwrap(), "{file} is the golden file");
    let accept: Vec<&str> =
        entry["accept"].as_array().unwrap().iter().map(|class| class.as_str().unwrap()).collect();
    let policy = ColorPolicy::default();

    if let Some(rgb) = entry["rgb"].as_object() {
        let header = read_header(&bytes, &ImageLimits::default()).unwrap();
        let picture = decode_rgb(&bytes, &header, &policy, scratch).unwrap();
        assert_eq!(u64::from(picture.width), rgb["width"].as_u64().unwrap(), "{file}");
        assert_eq!(u64::from(picture.height), rgb["height"].as_u64().unwrap(), "{file}");
        assert_eq!(sha256(&picture.pixels), rgb["sha256"].as_str().unwrap(), "{file}: RGB");
        let stored = (&entry["reference"]["width"], &entry["reference"]["height"]);
        let (width, height) = header.stored_size();
        assert_eq!(
            (stored.0.as_u64(), stored.1.as_u64()),
            (Some(width.into()), Some(height.into())),
            "{file}"
        );
    }
    let mut checked = 0;
    let listed = entry["configs"].as_object().cloned().unwrap_or_default();
    for (name, expected) in &listed {
        let geometry = geometry(&configs[name]);
        match outcome(&bytes, &geometry, scratch) {
            Ok((grid, resized, patches)) => {
                assert_eq!(expected["outcome"], "ok", "{file} {name}");
                assert_eq!(
                    u64s(&expected["resized"]),
                    [resized.0, resized.1].map(u64::from),
                    "{file} {name}"
                );
                assert_eq!(
                    u64s(&expected["grid_thw"]),
                    [grid.t, grid.h, grid.w].map(u64::from),
                    "{file} {name}"
                );
                assert_eq!(expected["tokens"].as_u64(), Some(grid.tokens(&geometry)), "{file} {name}");
                assert_eq!(expected["rows"].as_u64(), Some(grid.rows()), "{file} {name}");
                assert_eq!(
                    expected["u8_sha256"].as_str().unwrap(),
                    sha256(&patches),
                    "{file} {name}: patches"
                );
                check_values(&grid, &geometry, &patches, expected, file);
            }
            Err(error) => {
                assert_eq!(
                    expected["class"].as_str(),
                    Some(error.class().as_str()),
                    "{file} {name}: {error}"
                );
            }
        }
        checked += 1;
    }
    if listed.is_empty() || accept != ["ok"] {
        let class = match outcome(&bytes, &geometry(&configs["q3-small"]), scratch) {
            Ok(_) => "ok",
            Err(error) => error.class().as_str(),
        };
        assert!(accept.contains(&class), "{file}: {class}, accepted {accept:?}");
        checked += 1;
    }
    checked
}

/// Expands to the processor's own `pixel_values` (both temporal slots) and compares hashes.
fn check_values(grid: &Grid, geometry: &Geometry, patches: &[u8], expected: &Value, file: &str) {
    let (table, bf16) = (normalisation_lut(geometry), normalisation_lut_bf16(geometry));
    let plane = (geometry.patch * geometry.patch) as usize;
    let (mut wide, mut narrow) = (Sha256::new(), Sha256::new());
    for row in patches.chunks_exact(3 * plane) {
        for (channel, pixels) in row.chunks_exact(plane).enumerate() {
            let values: Vec<u8> =
                pixels.iter().flat_map(|byte| table[channel][usize::from(*byte)].to_le_bytes()).collect();
            let halves: Vec<u8> =
                pixels.iter().flat_map(|byte| bf16[channel][usize::from(*byte)].to_le_bytes()).collect();
            for _ in 0..geometry.temporal {
                wide.update(&values);
                narrow.update(&halves);
            }
        }
    }
    let hex = |hash: Sha256| hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(expected["fp32_sha256"].as_str(), Some(hex(wide).as_str()), "{file} {grid:?}: fp32");
    assert_eq!(expected["bf16_sha256"].as_str(), Some(hex(narrow).as_str()), "{file} {grid:?}: bf16");
}

fn check_list(list: &str) -> (usize, usize) {
    let expected = json(list);
    let mut scratch = Scratch::default();
    let files = expected["images"].as_array().unwrap();
    let configs = json("expected/images.json")["configs"].clone();
    (files.len(), files.iter().map(|entry| check_file(entry, &configs, &mut scratch)).sum())
}

#[test]
fn every_golden_image_gives_the_processor_s_patches() {
    let (files, checked) = check_list("expected/images.json");
    assert!(files >= 130 && checked >= 650, "{files} files, {checked} checks");
}

#[test]
fn every_golden_photo_gives_the_processor_s_patches() {
    let (files, checked) = check_list("expected/photos.json");
    assert!(files >= 6 && checked >= 30, "{files} files, {checked} checks");
}

#[test]
fn smart_resize_gives_every_golden_size() {
    let table = std::fs::read_to_string(golden("smart_resize.csv")).unwrap();
    let mut rows = 0;
    for line in table.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let number = |at: usize| cells[at].parse::<u64>().unwrap();
        let geometry = Geometry {
            patch: number(2) as u32,
            merge: number(3) as u32,
            temporal: 2,
            min_pixels: number(4),
            max_pixels: number(5),
            mean: [0.5; 3],
            std: [0.5; 3],
        };
        let result = smart_resize(number(0) as u32, number(1) as u32, &geometry);
        match (cells[6], result) {
            ("ok", Ok(resized)) => {
                assert_eq!((u64::from(resized.0), u64::from(resized.1)), (number(7), number(8)), "{line}");
                assert_eq!(Grid::of(resized, &geometry).tokens(&geometry), number(9), "{line}");
            }
            (class, Err(error)) => assert_eq!(class, error.class().as_str(), "{line}"),
            (class, Ok(resized)) => panic!("{line}: {resized:?} instead of {class}"),
        }
        rows += 1;
    }
    assert!(rows >= 3000, "{rows} rows");
}

/// A tensor of a safetensors file, as bytes.
fn tensor(file: &[u8], name: &str) -> Vec<u8> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let place = u64s(&header[name]["data_offsets"]);
    file[8 + length..][place[0] as usize..place[1] as usize].to_vec()
}

#[test]
fn normalisation_tables_are_bit_equal() {
    let file = std::fs::read(golden("expected/lut.safetensors")).unwrap();
    let configs = json("expected/images.json")["configs"].clone();
    for name in ["q3-small", "q25-small"] {
        let geometry = geometry(&configs[name]);
        let wide: Vec<u8> =
            normalisation_lut(&geometry).iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(wide, tensor(&file, &format!("{name}/f32")), "{name}");
        let narrow: Vec<u8> =
            normalisation_lut_bf16(&geometry).iter().flatten().flat_map(|bits| bits.to_le_bytes()).collect();
        assert_eq!(narrow, tensor(&file, &format!("{name}/bf16_bits")), "{name}");
    }
}

#[test]
fn the_golden_preprocessor_config_is_understood() {
    let geometry = Geometry::from_preprocessor_config(&json("tokenizer/preprocessor_config.json")).unwrap();
    assert_eq!((geometry.patch, geometry.merge, geometry.temporal), (16, 2, 2));
    assert_eq!((geometry.min_pixels, geometry.max_pixels), (65536, 16_777_216));
}

#[test]
fn patches_of_an_unresized_picture_give_the_picture_back() {
    // 48 x 48 is kept as it is by a geometry that allows it.
    let bytes = std::fs::read(golden("images/geo_edges_48x48.png")).unwrap();
    let geometry = Geometry {
        patch: 12,
        merge: 2,
        temporal: 2,
        min_pixels: 1,
        max_pixels: 1 << 20,
        mean: [0.5; 3],
        std: [0.5; 3],
    };
    let mut scratch = Scratch::default();
    let (grid, resized, patches) = outcome(&bytes, &geometry, &mut scratch).unwrap();
    assert_eq!(resized, (48, 48));
    let header = read_header(&bytes, &ImageLimits::default()).unwrap();
    let picture = decode_rgb(&bytes, &header, &ColorPolicy::default(), &mut scratch).unwrap();
    assert_eq!(patches_to_rgb(&patches, &grid, &geometry), picture);
}
