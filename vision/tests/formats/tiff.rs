use super::*;

/// One page in one uncompressed strip per plane, little-endian, tags sorted by the caller.
fn page(size: (u16, u16), tags: &[(u16, Vec<u16>)], planes: &[Vec<u8>]) -> Vec<u8> {
    let mut out = b"II*\0".to_vec();
    let data_at = 8u32;
    let data: Vec<u8> = planes.concat();
    let directory_at = (data_at as usize + data.len()).next_multiple_of(2);
    out.extend((directory_at as u32).to_le_bytes());
    out.extend(&data);
    out.resize(directory_at, 0);

    let mut entries: Vec<(u16, u16, Vec<u8>, u32)> = Vec::new();
    let mut put = |tag: u16, values: Vec<u8>, kind: u16, count: usize| {
        entries.push((tag, kind, values, count as u32));
    };
    put(256, size.0.to_le_bytes().to_vec(), 3, 1);
    put(257, size.1.to_le_bytes().to_vec(), 3, 1);
    for (tag, values) in tags {
        put(*tag, values.iter().flat_map(|value| value.to_le_bytes()).collect(), 3, values.len());
    }
    let (mut offsets, mut counts) = (Vec::new(), Vec::new());
    let mut at = data_at;
    for plane in planes {
        offsets.extend(at.to_le_bytes());
        counts.extend((plane.len() as u32).to_le_bytes());
        at += plane.len() as u32;
    }
    put(273, offsets, 4, planes.len());
    put(278, size.1.to_le_bytes().to_vec(), 3, 1);
    put(279, counts, 4, planes.len());
    entries.sort();

    out.extend((entries.len() as u16).to_le_bytes());
    let mut far_at = directory_at + 2 + entries.len() * 12 + 4;
    let mut far = Vec::new();
    for (tag, kind, mut values, count) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend(count.to_le_bytes());
        if values.len() <= 4 {
            values.resize(4, 0);
            out.extend(values);
        } else {
            out.extend((far_at as u32).to_le_bytes());
            far_at += values.len();
            far.extend(values);
        }
    }
    out.extend([0; 4]);
    out.extend(far);
    out
}

const BITS: u16 = 258;
const COMPRESSION: u16 = 259;
const COLOURS: u16 = 262;
const ORIENTATION: u16 = 274;
const SAMPLES: u16 = 277;
const PLANES: u16 = 284;
const EXTRA: u16 = 338;
const FORMAT: u16 = 339;

#[test]
fn gray_of_few_bits_is_spread_and_white_may_be_zero() {
    let tags = |colours| vec![(BITS, vec![1]), (COLOURS, vec![colours]), (SAMPLES, vec![1])];
    let data = [vec![0b1010_0000, 0b0110_0000]];
    assert_eq!(grays(&decode(&page((3, 2), &tags(1), &data))), [255, 0, 255, 0, 255, 255]);
    assert_eq!(grays(&decode(&page((3, 2), &tags(0), &data))), [0, 255, 0, 255, 0, 0]);
    let tags = [(BITS, vec![4]), (COLOURS, vec![1]), (SAMPLES, vec![1])];
    assert_eq!(grays(&decode(&page((3, 1), &tags, &[vec![0x0F, 0x30]]))), [0, 255, 51]);
}

#[test]
fn gray_and_colour_of_16_bits_keep_the_high_byte() {
    let tags = [(BITS, vec![16; 3]), (COLOURS, vec![2]), (SAMPLES, vec![3])];
    let file = page((1, 1), &tags, &[vec![0xFF, 0x01, 0x00, 0x02, 0x80, 0x03]]);
    assert_eq!(triples(&decode(&file)), [[1, 2, 3]]);
}

#[test]
fn ink_is_not_inverted() {
    let tags = [(BITS, vec![8; 4]), (COLOURS, vec![5]), (SAMPLES, vec![4])];
    let file = page((2, 1), &tags, &[vec![0, 255, 100, 0, 0, 0, 0, 255]]);
    assert_eq!(triples(&decode(&file)), [[255, 0, 155], [0, 0, 0]]);
}

#[test]
fn the_fourth_channel_is_alpha_only_when_the_file_says_so() {
    let file = |extra: Option<u16>| {
        let mut tags = vec![(BITS, vec![8; 4]), (COLOURS, vec![2]), (SAMPLES, vec![4])];
        tags.extend(extra.map(|kind| (EXTRA, vec![kind])));
        page((1, 1), &tags, &[vec![100, 50, 0, 51]])
    };
    let blend = |channel: u32| ((channel * 51 + 255 * 204 + 127) / 255) as u8;
    assert_eq!(triples(&decode(&file(Some(2)))), [[blend(100), blend(50), blend(0)]]);
    // Multiplied in: 100 of 51 is more than white, 50 is 250 before.
    assert_eq!(triples(&decode(&file(Some(1)))), [[blend(255), blend(250), blend(0)]]);
    assert_eq!(triples(&decode(&file(Some(0)))), [[100, 50, 0]]);
    assert_eq!(triples(&decode(&file(None))), [[100, 50, 0]]);
}

#[test]
fn gray_with_alpha() {
    let tags = [(BITS, vec![8; 2]), (COLOURS, vec![1]), (SAMPLES, vec![2]), (EXTRA, vec![2])];
    assert_eq!(grays(&decode(&page((2, 1), &tags, &[vec![10, 255, 10, 0]]))), [10, 255]);
}

#[test]
fn planes_are_put_together() {
    let tags = [(BITS, vec![8; 3]), (COLOURS, vec![2]), (SAMPLES, vec![3]), (PLANES, vec![2])];
    let file = page((2, 1), &tags, &[vec![1, 2], vec![3, 4], vec![5, 6]]);
    assert_eq!(triples(&decode(&file)), [[1, 3, 5], [2, 4, 6]]);
}

#[test]
fn orientation_is_applied() {
    let tags = |orientation| {
        vec![(BITS, vec![8]), (COLOURS, vec![1]), (ORIENTATION, vec![orientation]), (SAMPLES, vec![1])]
    };
    let data = [vec![1, 2, 3, 4, 5, 6]];
    let upright = decode(&page((3, 2), &tags(1), &data));
    assert_eq!(grays(&upright), [1, 2, 3, 4, 5, 6]);
    assert_eq!(decode(&page((3, 2), &tags(6), &data)), turned_right(&upright));
    assert_eq!(decode(&page((3, 2), &tags(9), &data)), upright, "an invalid value is ignored");
}

#[test]
fn what_cannot_be_exact_is_unsupported() {
    let gray = |more: (u16, Vec<u16>)| {
        page((1, 1), &[(BITS, vec![8]), (COLOURS, vec![1]), (SAMPLES, vec![1]), more], &[vec![7]])
    };
    assert_eq!(class(&gray((COMPRESSION, vec![7]))), ImageClass::Unsupported, "JPEG inside");
    assert_eq!(class(&gray((FORMAT, vec![2]))), ImageClass::Unsupported, "signed samples");
    let palette = [(BITS, vec![8]), (COLOURS, vec![3]), (SAMPLES, vec![1])];
    assert_eq!(class(&page((1, 1), &palette, &[vec![0]])), ImageClass::Unsupported, "palette");
}

#[test]
fn a_directory_that_declares_more_than_the_file_holds_is_corrupt() {
    let tags = [(BITS, vec![8]), (COLOURS, vec![1]), (SAMPLES, vec![1])];
    let plain = page((2, 3), &tags, &[vec![1, 2, 3, 4, 5, 6]]);
    let directory = u32::from_le_bytes(plain[4..8].try_into().unwrap()) as usize;
    let entries = usize::from(plain[directory]);
    for entry in 0..entries {
        for count in [1u32 << 16, 1 << 17, u32::MAX] {
            let mut greedy = plain.clone();
            let at = directory + 2 + entry * 12 + 4;
            greedy[at..at + 4].copy_from_slice(&count.to_le_bytes());
            assert_eq!(class(&greedy), ImageClass::Corrupt, "entry {entry} with {count} values");
        }
    }
}
