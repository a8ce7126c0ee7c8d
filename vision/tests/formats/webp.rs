use super::*;

fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let mut out = kind.to_vec();
    out.extend((data.len() as u32).to_le_bytes());
    out.extend(data);
    if data.len() % 2 == 1 {
        out.push(0);
    }
    out
}

fn riff(chunks: &[Vec<u8>]) -> Vec<u8> {
    let body: Vec<u8> = [b"WEBP".to_vec(), chunks.concat()].concat();
    chunk(b"RIFF", &body)
}

/// The golden lossy picture in an extended file with an EXIF block.
fn with_exif(block: &[u8]) -> Vec<u8> {
    let plain = golden("webp_lossy.webp");
    let (width, height) = header(&plain).stored_size();
    let mut extended = vec![0b1000, 0, 0, 0];
    extended.extend(&(width - 1).to_le_bytes()[..3]);
    extended.extend(&(height - 1).to_le_bytes()[..3]);
    riff(&[chunk(b"VP8X", &extended), plain[12..].to_vec(), chunk(b"EXIF", block)])
}

#[test]
fn orientation_is_applied() {
    let block = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
    let upright = decode(&golden("webp_lossy.webp"));
    for block in [block.to_vec(), [b"Exif\0\0".as_slice(), block].concat()] {
        let file = with_exif(&block);
        assert_eq!(header(&file).orientation(), 6);
        assert!(decode(&file) == turned_right(&upright), "turned");
    }
    assert!(decode(&with_exif(b"no such thing")) == upright, "a broken block is ignored");
}

#[test]
fn a_stream_larger_than_its_canvas_is_refused_from_the_header() {
    let mut file = with_exif(b"");
    let stream = file.windows(4).position(|kind| kind == b"VP8 ").unwrap() + 8;
    // 16383 pixels wide.
    file[stream + 6..stream + 8].copy_from_slice(&[0xFF, 0x3F]);
    assert_eq!(read_header(&file, &ImageLimits::default()).unwrap_err().class(), ImageClass::Corrupt);
}
