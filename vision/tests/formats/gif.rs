use std::borrow::Cow;

use ::gif::{Encoder, Frame};

use super::*;

/// A frame of 2 x 2 with palette indices 1 to 4 at (1, 1).
fn file(screen: (u16, u16), transparent: Option<u8>) -> Vec<u8> {
    let palette = [9, 9, 9, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4];
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&mut out, screen.0, screen.1, &palette).unwrap();
    let frame = Frame {
        left: 1,
        top: 1,
        width: 2,
        height: 2,
        buffer: Cow::Borrowed(&[1, 2, 3, 4]),
        transparent,
        ..Frame::default()
    };
    encoder.write_frame(&frame).unwrap();
    drop(encoder);
    out
}

#[test]
fn a_frame_smaller_than_the_screen_leaves_palette_entry_zero() {
    let picture = decode(&file((4, 3), None));
    assert_eq!((picture.width, picture.height), (4, 3));
    assert_eq!(grays(&picture), [9, 9, 9, 9, 9, 1, 2, 9, 9, 3, 4, 9]);
}

#[test]
fn with_transparency_the_rest_and_the_key_are_white() {
    let picture = decode(&file((4, 3), Some(2)));
    assert_eq!(grays(&picture), [255, 255, 255, 255, 255, 1, 255, 255, 255, 3, 4, 255]);
    let kept =
        decode_with(&file((4, 3), Some(2)), ColorPolicy { alpha_on_white: false, ..Default::default() });
    assert_eq!(grays(&kept), [2, 2, 2, 2, 2, 1, 2, 2, 2, 3, 4, 2]);
}

#[test]
fn the_screen_grows_to_hold_the_frame() {
    let bytes = file((1, 1), None);
    assert_eq!(header(&bytes).stored_size(), (3, 3));
    assert_eq!(grays(&decode(&bytes)), [9, 9, 9, 9, 1, 2, 9, 3, 4]);
}
