//! Takes a JPEG's bytes, gives what its markers say up to the first scan; and a copy with the header's
//! harmless oddities put right.
//!
//! Markers are found the way libjpeg finds them: bytes between segments are skipped.

use crate::error::ImageError;
use crate::exif;

const SOI: u8 = 0xD8;
const EOI: u8 = 0xD9;
const SOS: u8 = 0xDA;
const APP0: u8 = 0xE0;
const APP1: u8 = 0xE1;
const APP14: u8 = 0xEE;

/// One colour component's sampling factors, 1..=4 each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sampling {
    pub(crate) horizontal: u8,
    pub(crate) vertical: u8,
}

/// A frame header and what stands round it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Markers {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// The components; 1, 3 or 4 of them.
    pub(crate) components: Vec<Sampling>,
    /// Baseline or extended sequential, not progressive.
    pub(crate) sequential: bool,
    /// The picture comes in several scans, so libjpeg keeps all coefficients in memory.
    pub(crate) several_scans: bool,
    pub(crate) orientation: u8,
}

fn cut() -> ImageError {
    ImageError::corrupt("JPEG ends inside its header")
}

/// Finds the next marker at or after `at`; gives its code and the place after it.
fn next_marker(bytes: &[u8], mut at: usize) -> Option<(u8, usize)> {
    loop {
        while *bytes.get(at)? != 0xFF {
            at += 1;
        }
        while *bytes.get(at)? == 0xFF {
            at += 1;
        }
        let code = *bytes.get(at)?;
        at += 1;
        if code != 0 {
            return Some((code, at));
        }
    }
}

/// The payload of the segment whose length field stands at `at`, and the place after the segment.
fn segment(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let length = usize::from(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let end = at + length;
    Some((bytes.get(at + 2..end)?, end))
}

/// Markers without a segment: restart marks, and TEM.
fn stands_alone(code: u8) -> bool {
    matches!(code, 0x01 | 0xD0..=0xD7)
}

/// Start-of-frame codes, with or without support.
fn is_frame(code: u8) -> bool {
    matches!(code, 0xC0..=0xCF) && !matches!(code, 0xC4 | 0xC8 | 0xCC)
}

/// Reads the markers up to and including the first start-of-scan.
pub(crate) fn read(bytes: &[u8]) -> Result<Markers, ImageError> {
    let mut at = 2;
    let mut frame: Option<Markers> = None;
    let mut orientation = None;
    loop {
        let (code, after) = next_marker(bytes, at).ok_or_else(cut)?;
        at = after;
        if stands_alone(code) {
            continue;
        }
        if code == SOI || code == EOI {
            return Err(ImageError::corrupt("JPEG has no picture before its end mark"));
        }
        let (payload, end) = segment(bytes, at).ok_or_else(cut)?;
        at = end;
        match code {
            APP1 if orientation.is_none() && payload.starts_with(b"Exif\0\0") => {
                orientation = Some(exif::orientation(payload).unwrap_or(1));
            }
            SOS => {
                let mut frame =
                    frame.ok_or_else(|| ImageError::corrupt("JPEG scan without a frame header"))?;
                let in_scan = payload.first().map_or(0, |count| usize::from(*count));
                frame.several_scans = !frame.sequential || in_scan < frame.components.len();
                frame.orientation = orientation.unwrap_or(1);
                return Ok(frame);
            }
            code if is_frame(code) => {
                if frame.is_some() {
                    return Err(ImageError::corrupt("JPEG with two frame headers"));
                }
                frame = Some(read_frame(code, payload)?);
            }
            _ => {}
        }
    }
}

fn read_frame(code: u8, payload: &[u8]) -> Result<Markers, ImageError> {
    let sequential = match code {
        0xC0 | 0xC1 | 0xC9 => true,
        0xC2 | 0xCA => false,
        _ => {
            return Err(ImageError::Unsupported { detected: "JPEG with lossless or hierarchical coding" });
        }
    };
    let (head, rest) = payload.split_first_chunk::<6>().ok_or_else(cut)?;
    if head[0] != 8 {
        return Err(ImageError::Unsupported { detected: "JPEG with samples of other than 8 bits" });
    }
    let components: Vec<Sampling> =
        rest.chunks_exact(3).map(|one| Sampling { horizontal: one[1] >> 4, vertical: one[1] & 15 }).collect();
    if components.len() != usize::from(head[5]) || rest.len() != components.len() * 3 {
        return Err(ImageError::corrupt("JPEG frame header of the wrong length"));
    }
    if !matches!(components.len(), 1 | 3 | 4) {
        return Err(ImageError::Unsupported { detected: "JPEG with neither 1, 3 nor 4 components" });
    }
    let valid = |factor: u8| (1..=4).contains(&factor);
    if !components.iter().all(|one| valid(one.horizontal) && valid(one.vertical)) {
        return Err(ImageError::corrupt("JPEG with impossible sampling factors"));
    }
    Ok(Markers {
        width: u32::from(u16::from_be_bytes([head[3], head[4]])),
        height: u32::from(u16::from_be_bytes([head[1], head[2]])),
        components,
        sequential,
        several_scans: false,
        orientation: 1,
    })
}

/// Bytes of the coefficient arrays that libjpeg keeps when the picture comes in several scans: two bytes
/// per coefficient, blocks padded to whole minimum coded units.
pub(crate) fn coefficient_bytes(markers: &Markers) -> u64 {
    let most =
        |factor: fn(&Sampling) -> u8| u32::from(markers.components.iter().map(factor).max().unwrap_or(1));
    let units_across = markers.width.div_ceil(8 * most(|one| one.horizontal));
    let units_down = markers.height.div_ceil(8 * most(|one| one.vertical));
    let blocks: u64 =
        markers.components.iter().map(|one| u64::from(one.horizontal) * u64::from(one.vertical)).sum();
    u64::from(units_across) * u64::from(units_down) * blocks * 64 * 2
}

/// Copies a JPEG and puts right what libjpeg warns about although it changes no pixel: an unknown JFIF
/// version, an unknown Adobe transform code, scan parameters that a sequential frame does not use, and stray
/// bytes between segments. `None` when the markers cannot be followed to the end mark.
pub(crate) fn tidy(bytes: &[u8], markers: &Markers) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len());
    out.extend_from_slice(bytes.get(..2)?);
    let mut at = 2;
    loop {
        let (code, after) = next_marker(bytes, at)?;
        out.extend_from_slice(&[0xFF, code]);
        at = after;
        if code == EOI {
            return Some(out);
        }
        if stands_alone(code) {
            continue;
        }
        let (payload, end) = segment(bytes, at)?;
        let copied = out.len() + 2;
        out.extend_from_slice(&bytes[at..end]);
        at = end;
        patch(code, payload, &mut out[copied..], markers);
        if code == SOS {
            let data = scan_length(bytes.get(at..)?);
            out.extend_from_slice(&bytes[at..at + data]);
            at += data;
        }
    }
}

fn patch(code: u8, payload: &[u8], copy: &mut [u8], markers: &Markers) {
    match code {
        APP0 if payload.starts_with(b"JFIF\0") => {
            if let Some(major) = copy.get_mut(5).filter(|major| !matches!(**major, 1 | 2)) {
                *major = 1;
            }
        }
        APP14 if payload.starts_with(b"Adobe") => {
            // What libjpeg assumes when it does not know the code.
            let (known, assumed): ([u8; 2], u8) =
                if markers.components.len() == 4 { ([0, 2], 2) } else { ([0, 1], 1) };
            if let Some(transform) = copy.get_mut(11).filter(|transform| !known.contains(transform)) {
                *transform = assumed;
            }
        }
        SOS if markers.sequential => {
            if let Some(parameters) = copy.last_chunk_mut::<3>() {
                *parameters = [0, 63, 0];
            }
        }
        _ => {}
    }
}

/// Length of the entropy-coded data at the front of `bytes`: up to the first marker that is no restart mark.
fn scan_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == 0xFF) {
        at += found;
        match bytes.get(at + 1) {
            Some(0x00 | 0xD0..=0xD7) => at += 2,
            Some(0xFF) => at += 1,
            Some(_) => return at,
            None => break,
        }
    }
    bytes.len()
}
