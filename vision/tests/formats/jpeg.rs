use super::*;

/// Where a marker's two bytes stand.
fn marker(jpeg: &[u8], code: u8) -> usize {
    jpeg.windows(2).position(|pair| pair == [0xFF, code]).unwrap()
}

#[test]
fn harmless_oddities_of_the_header_change_nothing() {
    let plain = golden("jpeg_optimized.jpg");
    let expected = decode(&plain);
    let mut odd = plain.clone();
    odd[marker(&plain, 0xE0) + 9] = 7;
    assert!(decode(&odd) == expected, "unknown JFIF version");

    let mut odd = plain.clone();
    let parameters = marker(&plain, 0xDA) + 2 + 12 - 3;
    assert_eq!(odd[parameters..parameters + 3], [0, 63, 0]);
    odd[parameters..parameters + 3].copy_from_slice(&[0, 0, 0]);
    assert!(decode(&odd) == expected, "scan parameters of a sequential frame");

    let mut odd = plain.clone();
    let table = marker(&plain, 0xDB);
    odd.splice(table..table, [0x12, 0x34, 0x56]);
    assert!(decode(&odd) == expected, "stray bytes between segments");

    let mut odd = plain.clone();
    odd.splice(plain.len() - 2..plain.len() - 2, [0x00, 0x00, 0x00, 0x00]);
    assert!(decode(&odd) == expected, "stray bytes before the end mark");

    let mut odd = plain.clone();
    let adobe = *b"\xFF\xEE\x00\x0EAdobe\x00\x64\x00\x00\x00\x00\x07";
    odd.splice(2..2, adobe);
    assert!(decode(&odd) == expected, "unknown Adobe transform");
}

#[test]
fn a_cut_scan_with_an_end_mark_glued_on_is_corrupt() {
    for name in ["jpeg_optimized.jpg", "jpeg_progressive_444.jpg", "jpeg_gray.jpg", "jpeg_restart_rows.jpg"] {
        let plain = golden(name);
        let mut glued = plain[..plain.len() * 2 / 3].to_vec();
        glued.extend([0xFF, 0xD9]);
        assert_eq!(class(&glued), ImageClass::Corrupt, "{name}");
    }
}

#[test]
fn a_harmless_warning_does_not_hide_a_cut() {
    let plain = golden("jpeg_optimized.jpg");
    let mut glued = plain[..plain.len() * 2 / 3].to_vec();
    glued.extend([0xFF, 0xD9]);
    glued[marker(&plain, 0xE0) + 9] = 7;
    assert_eq!(class(&glued), ImageClass::Corrupt);
}

#[test]
fn a_missing_end_mark_is_always_corrupt() {
    for name in ["jpeg_optimized.jpg", "jpeg_progressive_444.jpg", "jpeg_gray.jpg"] {
        let plain = golden(name);
        assert_eq!(class(&plain[..plain.len() - 2]), ImageClass::Corrupt, "{name}");
    }
}

#[test]
fn refused_codings_are_unsupported() {
    let plain = golden("jpeg_optimized.jpg");
    let frame = marker(&plain, 0xC0);
    for code in [0xC3, 0xC5, 0xC7, 0xCB, 0xCF] {
        let mut other = plain.clone();
        other[frame + 1] = code;
        assert_eq!(class(&other), ImageClass::Unsupported, "{code:#x}");
    }
    let mut other = plain.clone();
    other[frame + 4] = 12;
    assert_eq!(class(&other), ImageClass::Unsupported, "12 bits");
}

#[test]
fn coefficients_are_announced_when_libjpeg_keeps_them() {
    let (one, several) = (golden("jpeg_optimized.jpg"), golden("jpeg_progressive_444.jpg"));
    let (one_header, several_header) = (header(&one), header(&several));
    assert_eq!(one_header.stored_size(), several_header.stored_size());
    let (width, height) = several_header.stored_size();
    let blocks = u64::from(width.div_ceil(8)) * u64::from(height.div_ceil(8));
    let without_files = |header: ImageHeader, file: &[u8]| header.decode_bytes() - file.len() as u64;
    let more = without_files(several_header, &several) - without_files(one_header, &one);
    assert_eq!(more, blocks * 3 * 64 * 2);
}

#[test]
fn orientation_can_be_switched_off() {
    let bytes = golden("exif_6.jpg");
    let off = ColorPolicy { exif_orientation: false, ..Default::default() };
    assert_eq!(header(&bytes).oriented_size(&ColorPolicy::default()), (64, 96));
    assert_eq!(header(&bytes).oriented_size(&off), (96, 64));
    assert_eq!(decode(&bytes), turned_right(&decode_with(&bytes, off)));
}
