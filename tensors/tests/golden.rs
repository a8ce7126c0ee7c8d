//! Padding, positions, packing and values against what transformers makes of the same batches.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::path::PathBuf;

use feedmill_protocol::frame::{BatchShape, BatchView, FORMAT_VERSION, FrameView, write_header};
use feedmill_protocol::model::ModelFacts;
use feedmill_tensors::{IGNORED, Packed, PackedSettings, Padded, Rows, TensorError, pixel_values};

/// Of the golden's tokenizer and preprocessor_config.
const MODEL: ModelFacts = ModelFacts {
    patch: 16,
    merge: 2,
    temporal: 2,
    mean: [0.5; 3],
    std: [0.5; 3],
    pad_id: 151_643,
    image_pad_id: 151_655,
    vision_start_id: 151_652,
    vision_end_id: 151_653,
};

fn expected(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/expected").join(name);
    std::fs::read(path).unwrap()
}

/// The ragged tensors of a golden as a worker sends them, its patches all of one value.
fn frame(golden: &FrameView<'_>) -> Vec<u8> {
    let i32s = |name: &str| -> Vec<i32> {
        golden.tensor(&format!("ragged.{name}")).map(|tensor| tensor.i32s().collect()).unwrap_or_default()
    };
    let (tokens, bounds) = (i32s("tokens"), i32s("cu_seqlens"));
    let (images, grids) = (i32s("images_per_sample"), i32s("image_grid_thw"));
    let patches: i32 = grids.chunks_exact(3).map(|grid| grid.iter().product::<i32>()).sum();
    let samples = images.len();
    let shape = BatchShape {
        samples,
        tokens: tokens.len(),
        images: grids.len() / 3,
        patches: patches as usize,
        patch_bytes: MODEL.patch_bytes(),
    };
    let metadata = [("format", FORMAT_VERSION), ("plan", "none"), ("range", "0-1")];
    let mut bytes = write_header(&shape.tensors(), &metadata);
    let le = |numbers: &[i32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
    bytes.resize(bytes.len() + shape.patches * shape.patch_bytes, 7);
    bytes.resize(bytes.len() + 2 * 8 * samples, 0);
    bytes.extend(le(&grids));
    bytes.extend(le(&tokens));
    bytes.extend(le(&bounds));
    bytes.extend(le(&images));
    bytes.resize(bytes.len() + 4 * samples, 0);
    bytes.extend(golden.tensor("ragged.loss_mask").unwrap().data);
    bytes.resize(bytes.len() + 17 * samples, 0);
    bytes
}

fn each_golden(check: impl Fn(&FrameView<'_>, &BatchView<'_>)) {
    for number in 0..8 {
        let bytes = expected(&format!("batch-{number}.safetensors"));
        let golden = FrameView::parse(&bytes).unwrap();
        let frame = frame(&golden);
        check(&golden, &BatchView::parse(&frame).unwrap());
    }
}

#[test]
fn padded_tensors_are_transformers() {
    each_golden(|golden, batch| {
        let rows = Rows::new(batch, &MODEL, false).unwrap();
        let made = Padded::new(&rows, 1).unwrap();
        let theirs =
            |name: &str| golden.tensor(&format!("padded.{name}")).unwrap().i64s().collect::<Vec<_>>();
        assert_eq!(golden.tensor("padded.input_ids").unwrap().shape, [made.rows, made.length]);
        assert_eq!(made.input_ids, theirs("input_ids"));
        assert_eq!(made.attention_mask, theirs("attention_mask"));
        assert_eq!(made.labels, theirs("labels"));
        assert_eq!(made.mm_token_type_ids, theirs("mm_token_type_ids"));
        assert_eq!(made.position_ids, theirs("position_ids"));
        let mask = golden.tensor("ragged.loss_mask").unwrap().data;
        assert_eq!(rows.supervised(), mask.iter().filter(|flag| **flag == 1).count());
    });
}

#[test]
fn a_wider_padding_changes_nothing_else() {
    each_golden(|_, batch| {
        let rows = Rows::new(batch, &MODEL, false).unwrap();
        let (tight, wide) = (Padded::new(&rows, 1).unwrap(), Padded::new(&rows, 64).unwrap());
        assert!(wide.length.is_multiple_of(64) && wide.length - tight.length < 64);
        let cut = |numbers: &[i64]| -> Vec<i64> {
            numbers.chunks_exact(wide.length).flat_map(|row| row[..tight.length].to_vec()).collect()
        };
        assert_eq!(cut(&wide.input_ids), tight.input_ids);
        assert_eq!(cut(&wide.labels), tight.labels);
        assert_eq!(cut(&wide.position_ids), tight.position_ids);
        assert_eq!(wide.attention_mask.iter().sum::<i64>(), tight.attention_mask.iter().sum::<i64>());
    });
}

#[test]
fn packed_segments_are_the_ragged_rows() {
    each_golden(|golden, batch| {
        let ragged = |name: &str| golden.tensor(&format!("ragged.{name}")).unwrap();
        let rows = Rows::new(batch, &MODEL, false).unwrap();
        let made = Packed::new(&rows, PackedSettings::default()).unwrap();
        let tokens: Vec<i64> = ragged("tokens").i32s().map(i64::from).collect();
        assert_eq!(made.input_ids, tokens);
        assert_eq!(made.labels, ragged("labels").i32s().map(i64::from).collect::<Vec<_>>());
        let types: Vec<i64> = ragged("mm_token_type_ids").data.iter().map(|kind| i64::from(*kind)).collect();
        assert_eq!(made.mm_token_type_ids, types);
        let (text, places) = made.position_ids.split_at(made.length);
        assert_eq!(places, ragged("position_ids").i32s().map(i64::from).collect::<Vec<_>>());
        let bounds: Vec<i32> = ragged("cu_seqlens").i32s().collect();
        assert_eq!((&made.cu_seqlens, &made.cu_seqlens_padded), (&bounds, &bounds));
        let lengths: Vec<i64> = bounds.windows(2).map(|pair| i64::from(pair[1] - pair[0])).collect();
        assert_eq!(text, lengths.iter().flat_map(|length| 0..*length).collect::<Vec<_>>());
        assert_eq!(made.max_seqlen as i64, *lengths.iter().max().unwrap());
        // What a place predicts is the label of the next one, within its segment.
        assert_eq!(made.shifted_labels[..made.length - 1], made.labels[1..]);
        assert_eq!(made.labels.iter().filter(|label| **label != IGNORED).count(), rows.supervised());
    });
}

#[test]
fn rounded_segments_hold_the_same_rows() {
    each_golden(|_, batch| {
        let rows = Rows::new(batch, &MODEL, false).unwrap();
        let tight = Packed::new(&rows, PackedSettings::default()).unwrap();
        let settings = PackedSettings { pad_to_multiple_of: 256, per_segment_multiple: 16 };
        let wide = Packed::new(&rows, settings).unwrap();
        assert_eq!(wide.cu_seqlens, tight.cu_seqlens);
        assert_eq!(wide.length % 256, 0);
        assert_eq!(wide.cu_seqlens_padded.last().copied(), i32::try_from(wide.length).ok());
        let segments = wide.cu_seqlens_padded.windows(2).zip(tight.cu_seqlens.windows(2));
        for (padded, plain) in segments {
            assert_eq!(padded[0] % 16, 0);
            let length = (plain[1] - plain[0]) as usize;
            let (padded, plain) =
                (padded[0] as usize..padded[1] as usize, plain[0] as usize..plain[1] as usize);
            assert!(padded.len() <= wide.max_seqlen);
            for axis in 0..4 {
                let places = &wide.position_ids[axis * wide.length..][padded.clone()];
                assert_eq!(places[..length], tight.position_ids[axis * tight.length..][plain.clone()]);
                // A place of 0 within a segment would begin another one.
                assert!(places[1..].iter().all(|place| *place > 0) || axis > 0);
                assert!(places[length..].windows(2).all(|pair| pair[1] == pair[0] + 1));
            }
            assert_eq!(wide.input_ids[padded.clone()][..length], tight.input_ids[plain]);
            assert!(wide.input_ids[padded.clone()][length..].iter().all(|id| *id == 151_643));
            assert!(wide.labels[padded][length..].iter().all(|label| *label == IGNORED));
        }
    });
}

#[test]
fn an_image_is_added_where_there_is_none() {
    each_golden(|golden, batch| {
        let has_image = golden.tensor("ragged.image_grid_thw").is_some();
        let plain = Rows::new(batch, &MODEL, false).unwrap();
        let rows = Rows::new(batch, &MODEL, true).unwrap();
        assert_eq!(rows.count(), plain.count() + usize::from(!has_image));
        assert_eq!(rows.supervised(), plain.supervised());
        let patches = batch.frame().tensor("patches").unwrap().data;
        let values = pixel_values(patches, &rows, &MODEL);
        assert_eq!(values.len(), (patches.len() + usize::from(!has_image) * 4 * 768) * 2);
        if has_image {
            return;
        }
        assert_eq!(rows.grids(), [1, 2, 2]);
        let made = Padded::new(&rows, 1).unwrap();
        let last = &made.input_ids[(made.rows - 1) * made.length..];
        assert_eq!(last[..4], [151_652, 151_655, 151_653, 151_643]);
        assert!(made.labels[(made.rows - 1) * made.length..].iter().all(|label| *label == IGNORED));
        assert_eq!(feedmill_tensors::extra_patches(&rows, &MODEL), [128; 4 * 768]);
    });
}

#[test]
fn values_are_the_tables_in_every_temporal_slot() {
    let file = expected("lut.safetensors");
    let (size, rest) = file.split_at(8);
    let size = u64::from_le_bytes(size.try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&rest[..size]).unwrap();
    let configs: serde_json::Value = serde_json::from_slice(&expected("images.json")).unwrap();
    let bytes = expected("batch-0.safetensors");
    let frame = frame(&FrameView::parse(&bytes).unwrap());
    let batch = BatchView::parse(&frame).unwrap();
    let rows = Rows::new(&batch, &MODEL, false).unwrap();
    // One patch that has every value in each channel.
    let patch: Vec<u8> = (0..3).flat_map(|_| 0..=255).collect();
    for name in ["q3-small", "q25-small"] {
        let statistic = |field: &str| -> [f32; 3] {
            serde_json::from_value(configs["configs"][name][field].clone()).unwrap()
        };
        let model =
            ModelFacts { mean: statistic("image_mean"), std: statistic("image_std"), temporal: 3, ..MODEL };
        let values = pixel_values(&patch, &rows, &model);
        let begin = header[format!("{name}/f32")]["data_offsets"][0].as_u64().unwrap() as usize;
        let table: Vec<f32> = rest[size + begin..][..3 * 256 * 4]
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        for (channel, values) in values.chunks_exact(3 * 256).enumerate() {
            for slot in values.chunks_exact(256) {
                assert_eq!(slot, &table[channel * 256..][..256], "{name}, channel {channel}");
            }
        }
    }
}

#[test]
fn batches_that_do_not_fit_the_model_are_refused() {
    each_golden(|golden, batch| {
        if golden.tensor("ragged.image_grid_thw").is_none() {
            return;
        }
        let refused = |model: ModelFacts| Rows::new(batch, &model, false).map(|_| ()).unwrap_err();
        let error = refused(ModelFacts { image_pad_id: 1, ..MODEL });
        assert!(matches!(error, TensorError::Placeholders { placeholders: 0, .. }), "{error}");
        let error = refused(ModelFacts { patch: 14, ..MODEL });
        assert_eq!(error, TensorError::PatchSize { got: 768, expected: 588 });
        let rows = Rows::new(batch, &MODEL, false).unwrap();
        for multiple in [0, usize::MAX] {
            let settings = PackedSettings { per_segment_multiple: multiple, pad_to_multiple_of: 1 };
            assert!(matches!(Packed::new(&rows, settings), Err(TensorError::Multiple { .. })));
            assert!(Padded::new(&rows, multiple).is_err());
        }
    });
}
