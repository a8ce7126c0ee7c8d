use super::*;
use crate::bad::{BadClass, RowStatus};
use crate::hash::SampleHasher;
use proptest::prelude::*;

/// A frame of two rows, one with two images and one with none, made by hand from the written layout.
fn two_rows() -> (BatchShape, Vec<u8>) {
    let shape = BatchShape { samples: 2, tokens: 5, images: 2, patches: 8, patch_bytes: 12 };
    let patches: Vec<u8> = (0..96).collect();
    let tokens = [10i32, 11, 12, 20, 21];
    let mask = [0u8, 0, 1, 0, 1];
    let grids = [[1i32, 2, 2], [1, 2, 2]];
    let mut first = SampleHasher::new(&tokens[..3], &mask[..3], &grids);
    first.patches(&patches);
    let second = SampleHasher::new(&tokens[3..], &mask[3..], &[]);
    let header = write_header(
        &shape.tensors(),
        &[("format", FORMAT_VERSION), ("plan", "sha256:00"), ("range", "4-6")],
    );
    let mut bytes = header;
    bytes.extend(&patches);
    bytes.extend([7i64, 8].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend([3i64, 9].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend(grids.iter().flatten().flat_map(|n| n.to_le_bytes()));
    bytes.extend(tokens.iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend([0i32, 3, 5].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend([2i32, 0].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend([0i32, 1].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend(mask);
    bytes.extend([0, RowStatus::Substituted(BadClass::ImageMissing).to_byte()]);
    bytes.extend(first.finish());
    bytes.extend(second.finish());
    (shape, bytes)
}

fn offset_of(bytes: &[u8], name: &str) -> usize {
    let frame = FrameView::parse(bytes).unwrap();
    frame.tensor(name).unwrap().data.as_ptr() as usize - bytes.as_ptr() as usize
}

#[test]
fn a_batch_comes_back_row_by_row() {
    let (_, bytes) = two_rows();
    let batch = BatchView::parse(&bytes).unwrap();
    let [first, second] = batch.samples() else { panic!("two rows") };
    assert_eq!((first.sample_index, first.record_index, first.dataset_index), (7, 3, 0));
    assert_eq!(first.tokens, [10, 11, 12]);
    assert_eq!(first.loss_mask, [0, 0, 1]);
    assert_eq!(first.grids, [[1, 2, 2], [1, 2, 2]]);
    assert_eq!(first.patches, (0..96).collect::<Vec<u8>>());
    assert_eq!(first.computed_hash(), first.hash);
    assert_eq!(second.status, RowStatus::Substituted(BadClass::ImageMissing));
    assert!(second.patches.is_empty() && second.grids.is_empty());
    assert_eq!(second.computed_hash(), second.hash);
    assert_eq!((batch.plan(), batch.range()), ("sha256:00", "4-6"));
}

#[test]
fn data_begins_at_a_page_and_patches_stand_first() {
    let (_, bytes) = two_rows();
    assert_eq!(offset_of(&bytes, "patches"), HEADER_ALIGNMENT);
    let frame = FrameView::parse(&bytes).unwrap();
    let names: Vec<&str> = frame.tensors().map(|(name, _)| name).collect();
    assert_eq!(names, COMPACT_TENSORS);
}

#[test]
fn a_batch_without_images_has_empty_patches() {
    let shape = BatchShape { samples: 1, tokens: 1, images: 0, patches: 0, patch_bytes: 768 };
    let mut bytes = write_header(&shape.tensors(), &[("format", FORMAT_VERSION)]);
    bytes.extend([0u8; 16]);
    bytes.extend(5i32.to_le_bytes());
    bytes.extend([0i32, 1].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend([0u8; 8]);
    bytes.extend([0u8, 0]);
    bytes.extend([0u8; 16]);
    let batch = BatchView::parse(&bytes).unwrap();
    assert_eq!(batch.frame().tensor("patches").unwrap().shape, [0, 768]);
    assert_eq!(batch.samples()[0].tokens, [5]);
}

/// Each malformed input has its own named error.
#[test]
fn malformed_frames_are_named() {
    let (shape, good) = two_rows();
    let patched = |name: &str, at: usize, value: u8| {
        let mut bytes = good.clone();
        let offset = offset_of(&good, name) + at;
        bytes[offset] = value;
        BatchView::parse(&bytes).map(|_| ()).unwrap_err().to_string()
    };
    assert!(patched("cu_seqlens", 0, 1).contains("cu_seqlens does not run"));
    assert!(patched("cu_seqlens", 4, 9).contains("not rising"));
    assert!(patched("images_per_sample", 0, 1).contains("more grids or patches"));
    assert!(patched("images_per_sample", 0, 9).contains("does not add up"));
    assert!(patched("image_grid_thw", 4, 0).contains("below 1"));
    assert!(patched("image_grid_thw", 4, 200).contains("more patches than"));
    assert!(patched("loss_mask", 0, 2).contains("other than 0 and 1"));
    assert!(patched("status", 0, 0x3f).contains("0x3f"));

    let header = |tensors: &[TensorSpec], version: &str| {
        let mut bytes = write_header(tensors, &[("format", version)]);
        bytes.resize(bytes.len() + tensors.iter().map(TensorSpec::bytes).sum::<usize>(), 0);
        BatchView::parse(&bytes).map(|_| ()).unwrap_err()
    };
    assert!(matches!(header(&shape.tensors(), "feedmill-9"), FrameError::Version(_)));
    let mut missing = shape.tensors();
    missing.remove(4);
    assert_eq!(header(&missing, FORMAT_VERSION), FrameError::Missing("tokens"));
    let mut wide = shape.tensors();
    wide[8].shape = vec![6];
    assert!(matches!(header(&wide, FORMAT_VERSION), FrameError::Type { name: "loss_mask", .. }));

    assert!(matches!(FrameView::parse(&good[..7]), Err(FrameError::Length { .. })));
    assert!(matches!(FrameView::parse(&good[..good.len() - 1]), Err(FrameError::Length { .. })));
    let long = [good.clone(), vec![0]].concat();
    assert!(matches!(FrameView::parse(&long), Err(FrameError::Length { .. })));
    assert!(matches!(FrameView::parse(&[0xff; 64]), Err(FrameError::HeaderTooLong(_))));
    let raw = |json: &str| {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend(json.as_bytes());
        bytes.extend([0; 8]);
        FrameView::parse(&bytes).map(|_| ()).unwrap_err()
    };
    assert!(matches!(raw("[1]"), FrameError::Header(_)));
    assert!(matches!(raw("{"), FrameError::Header(_)));
    assert!(matches!(raw(r#"{"__metadata__":{"a":1}}"#), FrameError::Header(_)));
    assert!(matches!(raw(r#"{"a":{"dtype":"U8","shape":[8]}}"#), FrameError::Header(_)));
    for offsets in ["[0,7]", "[1,9]", "[8,0]", "[0,18446744073709551615]"] {
        let json = format!(r#"{{"a":{{"dtype":"U8","shape":[8],"data_offsets":{offsets}}}}}"#);
        assert!(matches!(raw(&json), FrameError::Offsets { .. }), "{offsets}");
    }
    let huge = r#"{"a":{"dtype":"I64","shape":[9223372036854775807,9],"data_offsets":[0,8]}}"#;
    assert!(matches!(raw(huge), FrameError::Offsets { .. }));
}

#[test]
fn tensors_of_later_versions_are_ignored() {
    let mut tensors = two_rows().0.tensors();
    tensors.push(TensorSpec::new("video_patches", DType::U8, [3]));
    let (_, good) = two_rows();
    let data = &good[HEADER_ALIGNMENT..];
    let mut bytes = write_header(&tensors, &[("format", FORMAT_VERSION)]);
    bytes.extend(data);
    bytes.extend([1, 2, 3]);
    assert_eq!(BatchView::parse(&bytes).unwrap().samples().len(), 2);
}

proptest! {
    /// No change of bytes makes a reader panic; most make it refuse.
    #[test]
    fn damaged_frames_never_panic(changes in prop::collection::vec((0usize..6000, any::<u8>()), 1..8), cut in 0usize..6000) {
        let (_, mut bytes) = two_rows();
        let length = bytes.len();
        for (at, value) in changes {
            bytes[at % length] = value;
        }
        bytes.truncate(length - cut % length / 4);
        if let Ok(batch) = BatchView::parse(&bytes) {
            for sample in batch.samples() {
                let _ = sample.computed_hash();
            }
        }
    }
}
