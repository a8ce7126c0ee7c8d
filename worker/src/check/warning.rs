//! Takes a report, gives what a person should look at, each with what to do about it.

use serde::Serialize;

use super::report::Report;
use crate::check::Pictures;

/// A share of repeated records from which they are worth a look.
const REPEATED: f64 = 0.001;
/// Uses of one picture from which it is worth a look: no set of questions about one picture is so long.
const PICTURE_USES: u64 = 100;

macro_rules! warning_kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $remedy:literal;)*) => {
        /// What a person should look at. A closed list.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum WarningKind { $($(#[$doc])* $variant,)* }

        impl WarningKind {
            /// All of them.
            pub const ALL: &'static [WarningKind] = &[$(WarningKind::$variant,)*];

            /// The name in reports and in docs/check.md.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(WarningKind::$variant => $name,)* }
            }

            /// What to do about it.
            #[must_use]
            pub fn remedy(self) -> &'static str {
                match self { $(WarningKind::$variant => $remedy,)* }
            }
        }
    };
}

warning_kinds! {
    /// A column that the pipeline names and the first records do not have.
    UnusedColumn = "unused_column", "mend the name in columns, or remove it: the usual names are not looked for while it stands there";
    /// An excluded line that no record has.
    ExcludedPastTheEnd = "excluded_past_the_end", "nothing is excluded by such a line: mend its number, or remove it";
    /// A column that looks like pictures and is not read.
    UnreadPictures = "unread_pictures", "if these are the records' pictures, name the column: columns: {image: NAME}; without it they are trained on as text";
    /// Assistant turns without text.
    EmptyAnswers = "empty_answers", "only the end of such a turn is learnt: fill in the answers or remove the records";
    /// User turns at the end that nothing answers.
    DroppedTrailingTurns = "dropped_trailing_turns", "the turn is left out of the sample: add the answer that is missing, or ignore this";
    /// Control tokens written in other texts than answers.
    ControlTokens = "control_tokens", "they stay text and end no turn: if the records were rendered by a template before, give the conversations themselves";
    /// Records that stand more than once.
    RepeatedRecords = "repeated_records", "remove the copies, or use percent to repeat a data set on purpose";
    /// Records of one data set that stand in another one.
    SharedRecords = "shared_records", "remove them from one of the two; in an evaluation they measure memory";
    /// One picture in very many records.
    RepeatedPicture = "repeated_picture", "look at it: a placeholder such as \"image not available\" teaches to answer without looking";
    /// Samples longer than the limit.
    TooLong = "too_long", "raise processor.maxTokens, lower processor.maxPixels, choose another processor.tooLong, or shorten the records";
    /// A picture of the largest size is longer than a sample may be.
    PictureLongerThanSample = "picture_longer_than_sample", "lower processor.maxPixels or raise processor.maxTokens: every large picture will be made smaller";
    /// Samples that the worker cannot hold.
    Unholdable = "unholdable", "raise cache.sharedMemory; a worker answers 413 for these samples";
    /// Missing pictures cannot be told from refused ones.
    MissingLooksForbidden = "missing_looks_forbidden", "allow s3:ListBucket on the bucket, else one missing picture stops the training";
}

/// One thing that a person should look at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Warning {
    /// What.
    pub kind: WarningKind,
    /// The data set, when one is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// How often; 0 where it is no matter of counting.
    pub count: u64,
    /// In words.
    pub detail: String,
    /// What to do about it.
    pub remedy: &'static str,
}

fn percent(count: u64, of: u64) -> String {
    let share = 100.0 * count as f64 / of.max(1) as f64;
    if count > 0 && share < 0.01 { "under 0.01 %".into() } else { format!("{share:.2} %") }
}

pub(super) fn warnings(report: &Report) -> Vec<Warning> {
    let mut found = Vec::new();
    let mut warn = |kind: WarningKind, dataset: Option<&str>, count: u64, detail: String| {
        let dataset = dataset.map(str::to_owned);
        found.push(Warning { kind, dataset, count, detail, remedy: kind.remedy() });
    };
    let processor = &report.processor;
    if processor.tokens_at_max_pixels > processor.max_tokens {
        let detail = format!(
            "a picture of maxPixels {} has about {} tokens, maxTokens is {}",
            processor.max_pixels, processor.tokens_at_max_pixels, processor.max_tokens
        );
        warn(WarningKind::PictureLongerThanSample, None, 0, detail);
    }
    for dataset in &report.datasets {
        let (name, all) = (Some(dataset.name.as_str()), dataset.looked_at);
        for column in &dataset.unused_columns {
            let detail = format!("columns names {column:?}, which none of the first records has");
            warn(WarningKind::UnusedColumn, name, 0, detail);
        }
        if let Some(past) = &dataset.excluded_past_the_end {
            warn(WarningKind::ExcludedPastTheEnd, name, past.count, past.to_string());
        }
        let without = dataset.pictures_per_record.get(&0).copied().unwrap_or(0);
        for column in dataset.unread_pictures.iter().filter(|_| without > 0) {
            let detail = format!(
                "{without} records ({}) have no picture, and column {column:?}, which is not read, names some",
                percent(without, all)
            );
            warn(WarningKind::UnreadPictures, name, without, detail);
        }
        if dataset.empty_answers > 0 {
            let count = dataset.empty_answers;
            let detail = format!("{count} records ({}) have an answer without text", percent(count, all));
            warn(WarningKind::EmptyAnswers, name, count, detail);
        }
        if dataset.dropped_trailing_turns > 0 {
            let count = dataset.dropped_trailing_turns;
            let detail = format!("{count} records ({}) end with a turn of the user", percent(count, all));
            warn(WarningKind::DroppedTrailingTurns, name, count, detail);
        }
        let outside = dataset.control_tokens.iter().filter(|(role, _)| *role != "assistant");
        let count: u64 = outside.flat_map(|(_, tokens)| tokens.values()).sum();
        if count > 0 {
            let detail = format!(
                "control tokens stand {count} times in texts of users, tools or the system ({} records write any)",
                dataset.with_control_tokens
            );
            warn(WarningKind::ControlTokens, name, count, detail);
        }
        if let Some(duplicates) = &dataset.duplicates
            && duplicates.repeated as f64 >= REPEATED * all as f64
            && duplicates.repeated > 0
        {
            let (count, about) = (duplicates.repeated, if duplicates.exact { "" } else { "about " });
            let detail =
                format!("{about}{count} records ({}) are copies of earlier ones", percent(count, all));
            warn(WarningKind::RepeatedRecords, name, count, detail);
        }
        if let Some(most) = dataset.images.keys.most.first().filter(|most| most.uses >= PICTURE_USES) {
            let key = most.key.as_deref().unwrap_or("one picture");
            let detail = format!("{key} stands in {} records ({})", most.uses, percent(most.uses, all));
            warn(WarningKind::RepeatedPicture, name, most.uses, detail);
        }
        let too_long = &dataset.too_long;
        if too_long.over.most > 0 {
            let (least, most) = (too_long.over.least, too_long.over.most);
            let detail = if too_long.estimate {
                let how = match report.pictures {
                    Pictures::No => "; --images tells how many",
                    _ => "",
                };
                format!("{least} to about {most} samples are longer than maxTokens{how}")
            } else {
                format!("{most} samples ({}) are longer than maxTokens", percent(most, all))
            };
            warn(WarningKind::TooLong, name, most, detail);
        }
        if dataset.images.unholdable > 0 {
            let count = dataset.images.unholdable;
            warn(WarningKind::Unholdable, name, count, format!("{count} samples do not fit shared memory"));
        }
        if dataset.images.missing_looks_forbidden {
            let detail =
                format!("in {} a missing object answers 403, as a refused one does", dataset.images.base);
            warn(WarningKind::MissingLooksForbidden, name, 0, detail);
        }
    }
    for shared in &report.shared {
        let about = if shared.exact { "" } else { "about " };
        let detail =
            format!("{about}{} records stand in {} and in {}", shared.records, shared.first, shared.second);
        warn(WarningKind::SharedRecords, None, shared.records, detail);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_serde_writes() {
        for kind in WarningKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
