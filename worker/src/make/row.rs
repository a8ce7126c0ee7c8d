//! Takes the number of a row of a Parquet file, gives its text and its pictures, which stand in the row.
//!
//! Pages are fetched within the budget of fetched bytes. A row takes one permit for all that reading it needs;
//! when that is too little it gives everything back and asks anew, so it never waits for more while it holds a
//! part. What was decoded until then is on disk, and is not fetched again. The pictures' bytes keep their part
//! of the permit until the sample is finished.

use std::sync::Arc;

use feedmill_arena::{Permit, Urgency};
use feedmill_protocol::bad::BadClass;
use feedmill_source::{
    Cpu, FetchError, PermanentKind, RowError, RowLimits, RowOutcome, Table, TableRow, with_causes,
};

use super::fetch::{FIRST_PAUSE, LAST_PAUSE, is_gone};
use super::read::{self, Place, ReadSample};
use super::stages::Stages;
use super::{Attempt, MakeError, SampleMaker};
use crate::cpu_pool::CpuPool;
use crate::order::RecordId;
use crate::stream::{Dataset, Stream, row_of, text_and_blobs};

/// The pool, with the urgency of one sample.
struct Urgent<'a> {
    pool: &'a CpuPool,
    urgency: &'a Urgency,
    stages: &'a Arc<Stages>,
}

impl Cpu for Urgent<'_> {
    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
        let stages = Arc::clone(self.stages);
        let run = self.pool.run(self.urgency, move |_| stages.record.time(work));
        run.await.map_err(|lost| lost.to_string())
    }
}

impl SampleMaker {
    /// The record, and room for the pictures inside it.
    pub(crate) async fn row(
        &self,
        stream: &Arc<Stream>,
        dataset: &Dataset,
        table: &Table,
        id: RecordId,
        urgency: &Urgency,
    ) -> Result<(ReadSample, Option<Permit>), Attempt> {
        let (file, row) = table.place(id.record).ok_or_else(|| MakeError::Internal("no such row".into()))?;
        let place = Place { line: id.record + 1, row: Some(format!("row {} of {file}", row + 1)) };
        if dataset.exclude.contains(&place.line) {
            let detail = "the row is in the data set's exclude list".into();
            return Err(Attempt::Bad(place.fault(BadClass::Excluded, detail)));
        }
        let (row, mut permit) = self.fetch_row(stream, dataset, table, id, &place, urgency).await?;
        let (text, blobs) = text_and_blobs(&row.columns);
        let limit = stream.limits.max_line_bytes.0;
        if text > limit {
            let detail = format!("the row has {text} bytes of text, the limit is {limit}");
            return Err(Attempt::Bad(place.fault(BadClass::LineTooLong, detail)));
        }
        let of = Arc::clone(stream);
        let cpu = Urgent { pool: &self.pool, urgency, stages: &self.stages };
        let read = cpu.run(move || match row_of(row.columns) {
            Ok(row) => read::read_record(&of, id, row, place),
            Err(error) => Err(Attempt::Bad(place.fault(BadClass::RecordUnreadable, error.to_string()))),
        });
        let read = read.await.map_err(MakeError::Internal)??;
        permit.shrink_to(blobs);
        // Text alone takes no part of the budget, as in a manifest: it is bounded by its limit.
        Ok((read, (blobs > 0).then_some(permit)))
    }

    /// The row, with room for it.
    async fn fetch_row(
        &self,
        stream: &Stream,
        dataset: &Dataset,
        table: &Table,
        id: RecordId,
        place: &Place,
        urgency: &Urgency,
    ) -> Result<(TableRow, Permit), Attempt> {
        let bytes = stream.limits.max_sample_bytes.0;
        let cpu = Urgent { pool: &self.pool, urgency, stages: &self.stages };
        let mut room = RowLimits::usual(bytes);
        let mut pause = FIRST_PAUSE;
        loop {
            let permit = self.fetch.acquire(room, urgency).await;
            let mut permit = permit.map_err(|error| MakeError::Internal(error.to_string()))?;
            let error = match table.row(&self.stores, id.record, RowLimits { bytes, room }, &cpu).await {
                Ok(RowOutcome::Row(row)) => {
                    permit.shrink_to(row.bytes);
                    return Ok((row, permit));
                }
                Ok(RowOutcome::NeedsRoom(needed)) => {
                    room = needed.max(room.saturating_add(1));
                    continue;
                }
                Err(error) => error,
            };
            // Nothing is held while waiting.
            drop(permit);
            match error {
                RowError::Bad { what, .. } => {
                    return Err(Attempt::Bad(place.fault(BadClass::RecordUnreadable, what)));
                }
                RowError::Fetch { uri, source } => {
                    let place = place.row.as_deref().unwrap_or_default();
                    let detail = format!("{place}: {}", with_causes(&*source));
                    match *source {
                        FetchError::Denied { remedy, .. } => {
                            return Err(MakeError::Source { detail, remedy }.into());
                        }
                        FetchError::Permanent { kind: PermanentKind::Missing, .. }
                            if is_gone(&uri.parent()).await =>
                        {
                            tracing::warn!(%uri, "the folder of a Parquet file is gone; looking again");
                        }
                        FetchError::Permanent { .. } => {
                            dataset.note_changed(&stream.name, &detail);
                            let remedy = dataset.records.changed_remedy();
                            return Err(MakeError::Source { detail, remedy }.into());
                        }
                        FetchError::Transient { .. } => {
                            tracing::warn!(%uri, error = detail, "storage does not answer; asking again");
                        }
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LAST_PAUSE);
                }
                error => return Err(MakeError::Internal(with_causes(&error)).into()),
            }
        }
    }
}
