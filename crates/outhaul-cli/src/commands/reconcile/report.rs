//! What was found: counts, counts by the hour, examples, and everything in files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use outhaul_reconcile::{Counts, Group, Record, Verdict};
use serde::Serialize;
use serde_json::{Value, json};

use super::kept::Kept;
use super::{id_text, place_text, time_text};
use crate::codes;
use crate::failure::{Exit, Failure};
use crate::output;

/// Hours that are counted one by one, at most: more than eleven years of them.
const HOURS_MAX: usize = 100_000;
const HOUR_MS: i64 = 3_600_000;

/// What is shown, and where the rest goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown<'a> {
    pub(super) examples: usize,
    pub(super) out: Option<&'a Path>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Hour {
    checked: u64,
    missing: u64,
    duplicate: u64,
    stray: u64,
}

/// Ids of one verdict.
struct Found {
    name: &'static str,
    examples: Vec<Value>,
    file: Option<(BufWriter<File>, PathBuf)>,
}

/// What was found of two sides.
pub(super) struct Report {
    expected: String,
    actual: String,
    counts: Counts,
    /// Not there, and too old to tell.
    unknown: u64,
    hours: BTreeMap<i64, Hour>,
    found: [Found; 5],
    most: usize,
    names: Vec<String>,
    pub(super) fixed: u64,
    pub(super) fixable: u64,
    /// What was left as it is, and why.
    pub(super) left: u64,
}

impl Report {
    pub(super) fn new(expected: &str, actual: &str, shown: Shown<'_>) -> Result<Self, Failure> {
        let file = |name: &str| {
            let Some(folder) = shown.out else { return Ok(None) };
            let path = folder.join(format!("{expected}-{actual}.{name}.jsonl"));
            let made = std::fs::create_dir_all(folder).and_then(|()| File::create(&path));
            made.map(|file| Some((BufWriter::new(file), path.clone()))).map_err(|e| failed(&path, &e))
        };
        let found = |name| Ok::<_, Failure>(Found { name, examples: vec![], file: file(name)? });
        Ok(Self {
            expected: expected.into(),
            actual: actual.into(),
            counts: Counts::default(),
            unknown: 0,
            hours: BTreeMap::new(),
            found: [found("missing")?, found("duplicate")?, found("stray")?, found("parked")?, found("unknown")?],
            most: shown.examples,
            names: vec![],
            fixed: 0,
            fixable: 0,
            left: 0,
        })
    }

    /// Notes an id that was judged by what both sides have of it.
    pub(super) fn judged(&mut self, verdict: Verdict, group: &Group) -> Result<(), Failure> {
        let record = group.expected.records.first().or_else(|| group.actual.records.first());
        record.map_or(Ok(()), |record| self.note(verdict, record, group.actual.count))
    }

    /// Notes an id. `copies`: how many the actual side has.
    pub(super) fn note(&mut self, verdict: Verdict, record: &Record, copies: u64) -> Result<(), Failure> {
        if verdict == Verdict::Aside {
            return Ok(());
        }
        self.counts.add(verdict);
        let at = record.at_ms.map(|ms| ms.div_euclid(HOUR_MS));
        if let Some(hour) = at.filter(|at| self.hours.len() < HOURS_MAX || self.hours.contains_key(at)) {
            let hour = self.hours.entry(hour).or_default();
            hour.checked += u64::from(verdict != Verdict::Stray);
            match verdict {
                Verdict::Missing => hour.missing += 1,
                Verdict::Duplicate => hour.duplicate += 1,
                Verdict::Stray => hour.stray += 1,
                _ => {}
            }
        }
        let kind = match verdict {
            Verdict::Missing => 0,
            Verdict::Duplicate => 1,
            Verdict::Stray => 2,
            Verdict::Parked => 3,
            _ => return Ok(()),
        };
        self.keep(kind, record, copies)
    }

    /// Notes an id of which nobody can tell any more.
    pub(super) fn note_unknown(&mut self, record: &Record) -> Result<(), Failure> {
        self.unknown += 1;
        self.keep(4, record, 0)
    }

    fn keep(&mut self, kind: usize, record: &Record, copies: u64) -> Result<(), Failure> {
        let Some(found) = self.found.get_mut(kind) else { return Ok(()) };
        if found.examples.len() >= self.most && found.file.is_none() {
            return Ok(());
        }
        let mut line = json!({ "id": id_text(record), "at": record.at_ms.map(time_text) });
        if let Some(map) = line.as_object_mut() {
            let place = place_text(record, &self.names);
            map.extend(place.map(|place| ("place".to_owned(), Value::from(place))));
            map.extend((copies > 1).then(|| ("copies".to_owned(), Value::from(copies))));
        }
        if let Some((file, path)) = &mut found.file {
            writeln!(file, "{line}").map_err(|e| failed(path, &e))?;
        }
        if found.examples.len() < self.most {
            found.examples.push(line);
        }
        Ok(())
    }

    pub(super) fn finish_files(&mut self) -> Result<(), Failure> {
        for (file, path) in self.found.iter_mut().filter_map(|found| found.file.as_mut()) {
            file.flush().map_err(|e| failed(path, &e))?;
        }
        Ok(())
    }

    /// The figures, and the first ids that are missing.
    pub(super) fn kept(&self) -> Kept {
        let c = self.counts;
        let ids = self.found.first().map_or(&[][..], |missing| &missing.examples);
        Kept {
            checked: c.checked,
            missing: c.missing,
            fixed: self.fixed,
            duplicate: c.duplicate,
            stray: c.stray,
            pending: c.pending,
            parked: c.parked,
            unknown: self.unknown,
            examples: ids.iter().filter_map(|line| line.get("id")?.as_str().map(str::to_owned)).collect(),
            ..Kept::default()
        }
    }

    /// Shows it. Exit code 3 if something was found that was not mended.
    pub(super) fn show(&self, json: bool, fix: bool, yes: bool, parked: Option<String>) -> Result<Exit, Failure> {
        let c = self.counts;
        let open = c.missing.saturating_sub(self.fixed);
        let exit = Exit::Fine.or_attention(open + c.duplicate + c.stray > 0);
        if json {
            output::json(&self.value())?;
            return Ok(exit);
        }
        output::line(self.sentence(fix, yes))?;
        let troubled = self.hours.iter().filter(|(_, h)| h.missing + h.duplicate + h.stray > 0);
        for (hour, h) in troubled {
            output::line(format_args!(
                "  {}: {} checked, {} missing, {} duplicate, {} stray",
                time_text(hour.saturating_mul(HOUR_MS)).get(..16).unwrap_or_default(),
                h.checked,
                h.missing,
                h.duplicate,
                h.stray
            ))?;
        }
        for found in &self.found {
            for example in &found.examples {
                output::line(format_args!("  {} {}", found.name, one_line(example)))?;
            }
        }
        for (_, path) in self.found.iter().filter_map(|found| found.file.as_ref()) {
            eprintln!("all of them: {}", path.display());
        }
        if let Some(remedy) = parked.filter(|_| c.parked > 0) {
            eprintln!("parked messages are not delivered by --fix: {remedy}");
        }
        if self.unknown > 0 {
            eprintln!("unknown: from before the log, or the destination, begins; nobody can tell any more");
        }
        Ok(exit)
    }

    /// One line that can be read aloud.
    fn sentence(&self, fix: bool, yes: bool) -> String {
        let (c, expected, actual) = (self.counts, &self.expected, &self.actual);
        let mut line = match c.missing {
            0 => format!("{actual} has all {} of {expected}", c.checked - c.pending - c.parked - c.given_up),
            n => format!("{n} of {} of {expected} are missing at {actual}", c.checked),
        };
        for (n, what) in [
            (c.duplicate, "there more than once"),
            (c.stray, "there and known to nobody"),
            (c.pending, "under way yet"),
            (c.parked, "parked"),
            (c.given_up, "given up by an operator"),
            (self.unknown, "too old to tell"),
        ] {
            if n > 0 {
                line.push_str(&format!("; {n} {what}"));
            }
        }
        if fix && c.missing > 0 {
            line.push_str(&match yes {
                true => format!("; {} mended", self.fixed),
                false => format!("; {} would be mended: say --yes to do it", self.fixable),
            });
        }
        if self.left > 0 {
            line.push_str(&format!(", {} left as they are", self.left));
        }
        line
    }

    fn value(&self) -> Value {
        let c = self.counts;
        let [missing, duplicate, stray, parked, unknown] = &self.found;
        let hours: Vec<Value> = self
            .hours
            .iter()
            .map(|(hour, h)| {
                json!({ "hour": time_text(hour.saturating_mul(HOUR_MS)), "checked": h.checked, "missing": h.missing,
                        "duplicate": h.duplicate, "stray": h.stray })
            })
            .collect();
        json!({
            "expected": self.expected, "actual": self.actual, "checked": c.checked,
            "missing": missing.examples, "duplicate": duplicate.examples, "stray": stray.examples,
            "parked": parked.examples, "unknown": unknown.examples,
            "counts": { "missing": c.missing, "duplicate": c.duplicate, "stray": c.stray, "parked": c.parked,
                        "given_up": c.given_up, "unknown": self.unknown },
            "pending": c.pending, "hours": hours, "fixable": self.fixable, "fixed": self.fixed, "left": self.left,
        })
    }
}

fn one_line(example: &Value) -> String {
    let text = |name: &str| example.get(name).and_then(Value::as_str).map(str::to_owned);
    let mut line = text("id").unwrap_or_default();
    for (before, name) in [(" of ", "at"), (" at ", "place")] {
        line.push_str(&text(name).map(|value| format!("{before}{value}")).unwrap_or_default());
    }
    let copies = example.get("copies").and_then(Value::as_u64);
    line.push_str(&copies.map(|n| format!(", {n} copies")).unwrap_or_default());
    line
}

fn failed(path: &Path, e: &std::io::Error) -> Failure {
    Failure::new(&codes::INPUT_OUTPUT, format!("{}: {e}", path.display()))
}
