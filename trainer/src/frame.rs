//! A batch as it came, and the tensors made of it.

use std::any::Any;
use std::sync::Arc;

use feedmill_client::Batch;
use feedmill_protocol::bad::RowStatus;
use feedmill_protocol::frame::{BatchView, DType};
use feedmill_protocol::hash::hex;
use feedmill_tensors::{Packed, PackedSettings, Padded, Rows, TensorError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::array::Array;
use crate::errors;
use crate::fleet::Model;

/// A batch: one frame in one buffer.
#[pyclass(frozen, module = "feedmill._feedmill")]
pub struct Frame {
    batch: Arc<Batch>,
}

impl Frame {
    /// Takes a batch.
    pub fn new(_py: Python<'_>, batch: Batch) -> PyResult<Self> {
        Ok(Self { batch: Arc::new(batch) })
    }

    fn view(&self, py: Python<'_>) -> PyResult<BatchView<'_>> {
        self.batch.view().map_err(|error| errors::named(py, "FeedmillError", &error.to_string()))
    }

    /// Works on the rows with Python's lock let go.
    fn made<T: Send>(
        &self,
        py: Python<'_>,
        model: &Model,
        ensure_image: bool,
        work: impl FnOnce(&BatchView<'_>, &Rows<'_>) -> Result<T, TensorError> + Send,
    ) -> PyResult<T> {
        let view = self.view(py)?;
        let made = py.detach(|| {
            let rows = Rows::new(&view, &model.0, ensure_image)?;
            work(&view, &rows)
        });
        made.map_err(|error| match error {
            TensorError::Multiple { .. } => errors::config(py, &error.to_string()),
            _ => errors::named(py, "FeedmillError", &format!("range {}: {error}", self.batch.range())),
        })
    }
}

#[pymethods]
impl Frame {
    /// First position and one past the last.
    #[getter]
    fn range(&self) -> (u64, u64) {
        (self.batch.range().start(), self.batch.range().end())
    }

    /// Digest of the plan it was made by.
    #[getter]
    fn plan(&self) -> String {
        self.batch.plan().to_string()
    }

    /// The worker that made it.
    #[getter]
    fn worker(&self) -> String {
        self.batch.worker().to_string()
    }

    /// Bytes of the frame.
    #[getter]
    fn bytes(&self) -> usize {
        self.batch.bytes().len()
    }

    /// {name: Array} of the tensors as they came, by reference.
    fn arrays<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let view = self.view(py)?;
        let arrays = PyDict::new(py);
        for (name, tensor) in view.frame().tensors() {
            let kind = match tensor.dtype {
                DType::U8 => "|u1",
                DType::I32 => "<i4",
                DType::I64 => "<i8",
                // Tensors of later versions.
                _ => continue,
            };
            let owner: Arc<dyn Any + Send + Sync> = Arc::clone(&self.batch) as _;
            let array = Array::borrowing(owner, tensor.data, kind, tensor.shape.clone());
            arrays.set_item(name, array)?;
        }
        Ok(arrays)
    }

    /// One dict per row.
    fn info<'py>(&self, py: Python<'py>, datasets: Vec<String>) -> PyResult<Bound<'py, PyList>> {
        let view = self.view(py)?;
        let rows = PyList::empty(py);
        for (position, sample) in (self.batch.range().start()..).zip(view.samples()) {
            let row = PyDict::new(py);
            let dataset = usize::try_from(sample.dataset_index).ok().and_then(|index| datasets.get(index));
            row.set_item("position", position)?;
            row.set_item("dataset", dataset)?;
            row.set_item("dataset_index", sample.dataset_index)?;
            row.set_item("record", sample.record_index)?;
            row.set_item("sample", sample.sample_index)?;
            row.set_item("status", kind(sample.status))?;
            row.set_item("fault", sample.status.class().map(|class| class.name()))?;
            row.set_item("tokens", sample.tokens.len())?;
            row.set_item("supervised", sample.loss_mask.iter().skip(1).filter(|flag| **flag == 1).count())?;
            row.set_item("images", sample.grids.len())?;
            row.set_item("hash", hex(&sample.hash))?;
            rows.append(row)?;
        }
        Ok(rows)
    }

    /// (rows, tokens, longest row, supervised tokens, filler rows, bad rows) and [rows per data set index].
    fn counts(&self, datasets: usize) -> (Counts, Vec<u64>) {
        let counts = self.batch.counts();
        let mut per_dataset = vec![0; datasets];
        for index in &counts.datasets {
            let index = usize::try_from(*index).ok();
            if let Some(rows) = index.and_then(|index| per_dataset.get_mut(index)) {
                *rows += 1;
            }
        }
        let rows = counts.datasets.len();
        ((rows, counts.tokens, counts.longest, counts.supervised, counts.filler, counts.bad), per_dataset)
    }

    /// Rows side by side: {name: Array}.
    fn padded<'py>(
        &self,
        py: Python<'py>,
        model: &Model,
        ensure_image: bool,
        pad_to_multiple_of: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (made, grids) = self.made(py, model, ensure_image, |_, rows| {
            Ok((Padded::new(rows, pad_to_multiple_of)?, rows.grids()))
        })?;
        let Padded { rows, length, input_ids, attention_mask, labels, mm_token_type_ids, position_ids } =
            made;
        let shape = [rows, length];
        let arrays = PyDict::new(py);
        arrays.set_item("input_ids", Array::owning(input_ids, shape))?;
        arrays.set_item("attention_mask", Array::owning(attention_mask, shape))?;
        arrays.set_item("labels", Array::owning(labels, shape))?;
        arrays.set_item("mm_token_type_ids", Array::owning(mm_token_type_ids, shape))?;
        arrays.set_item("position_ids", Array::owning(position_ids, [3, rows, length]))?;
        let images = grids.len() / 3;
        arrays.set_item("image_grid_thw", Array::owning(grids, [images, 3]))?;
        Ok(arrays)
    }

    /// Rows one after another: {name: Array}, and max_seqlen.
    fn packed<'py>(
        &self,
        py: Python<'py>,
        model: &Model,
        ensure_image: bool,
        pad_to_multiple_of: usize,
        per_segment_multiple: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        let settings = PackedSettings { pad_to_multiple_of, per_segment_multiple };
        let (made, grids) =
            self.made(py, model, ensure_image, |_, rows| Ok((Packed::new(rows, settings)?, rows.grids())))?;
        let (length, segments) = (made.length, made.cu_seqlens.len());
        let arrays = PyDict::new(py);
        arrays.set_item("input_ids", Array::owning(made.input_ids, [1, length]))?;
        arrays.set_item("labels", Array::owning(made.labels, [1, length]))?;
        arrays.set_item("shifted_labels", Array::owning(made.shifted_labels, [1, length]))?;
        arrays.set_item("mm_token_type_ids", Array::owning(made.mm_token_type_ids, [1, length]))?;
        arrays.set_item("position_ids", Array::owning(made.position_ids, [4, 1, length]))?;
        arrays.set_item("cu_seqlens", Array::owning(made.cu_seqlens, [segments]))?;
        arrays.set_item("cu_seqlens_padded", Array::owning(made.cu_seqlens_padded, [segments]))?;
        arrays.set_item("max_seqlen", made.max_seqlen)?;
        let images = grids.len() / 3;
        arrays.set_item("image_grid_thw", Array::owning(grids, [images, 3]))?;
        Ok(arrays)
    }

    /// f32 [P, 3*T*p*p]: the values that the model sees.
    fn pixel_values(&self, py: Python<'_>, model: &Model, ensure_image: bool) -> PyResult<Array> {
        let values = self.made(py, model, ensure_image, |view, rows| {
            let patches = view.frame().tensor("patches").map(|tensor| tensor.data).unwrap_or_default();
            Ok(feedmill_tensors::pixel_values(patches, rows, &model.0))
        })?;
        let columns = model.0.patch_values();
        let rows = values.len() / columns.max(1);
        Ok(Array::owning(values, [rows, columns]))
    }

    /// u8 [n, 3*p*p]: patches of the masked image; n = 0 when none is added.
    fn extra_patches(&self, py: Python<'_>, model: &Model, ensure_image: bool) -> PyResult<Array> {
        let patches = self
            .made(py, model, ensure_image, |_, rows| Ok(feedmill_tensors::extra_patches(rows, &model.0)))?;
        let columns = model.0.patch_bytes();
        let rows = patches.len() / columns.max(1);
        Ok(Array::owning(patches, [rows, columns]))
    }
}

/// Rows, tokens, longest row, supervised tokens, filler rows, bad rows.
type Counts = (usize, usize, usize, usize, usize, usize);

fn kind(status: RowStatus) -> &'static str {
    match status {
        RowStatus::Ok => "ok",
        RowStatus::Filler => "filler",
        RowStatus::Substituted(_) => "substituted",
        RowStatus::ZeroLoss(_) => "zero_loss",
    }
}
