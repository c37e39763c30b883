//! `drain --sink rocketmq`: a full outbox into a topic, beside the parts that no relay can do without and its rivals.

use super::hand_made::Sender;
use super::sends::Sends;
use super::{Broker, Topic, java, sends, sink};
use crate::drain::{self, Arguments, Took, article_table, floor_tables, server_port, timed};
use crate::raw::{self, Place};

/// Seconds of the clock; of CPU in this process, in the database server, and in the client's own process.
struct Line {
    name: String,
    seconds: Vec<f64>,
    note: String,
}

struct Table(Vec<Line>);

impl Table {
    fn add(&mut self, name: &str, seconds: f64, note: String) {
        eprintln!("{name}: {seconds:.3} s  {note}");
        match self.0.iter_mut().find(|line| line.name == name) {
            Some(line) => {
                line.seconds.push(seconds);
                line.note = note;
            }
            None => self.0.push(Line { name: name.to_owned(), seconds: vec![seconds], note }),
        }
    }

    fn took(&mut self, name: &str, took: Took) {
        self.add(name, took.clock, format!("CPU {:.2} s here, {:.2} s in the database", took.here, took.server));
    }

    fn sends(&mut self, name: &str, sends: Sends) {
        let note = format!("CPU {:.2} s, peak RSS {:.0} MiB", sends.cpu_seconds, sends.peak_rss_mib);
        self.add(name, sends.seconds, note);
    }

    fn median(&self, name: &str) -> f64 {
        let Some(line) = self.0.iter().find(|line| line.name == name) else { return f64::NAN };
        let mut seconds = line.seconds.clone();
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2]
    }
}

const A: &str = "A  database move alone";
const B: &str = "B  this client alone, batches";
const C: &str = "C  Apache's Java client alone, batches";
const OUTHAUL: &str = "Outhaul to RocketMQ";
const BATCH_A_POLL: &str = "hand-made relay, 200 rows a poll, one batch";
const SEND_A_ROW: &str = "hand-made relay, 200 rows a poll, a send a row";

async fn hand_made(place: &mut Place, arguments: &Arguments, namesrv: &str, each: bool) -> Took {
    let topic = Topic::make(namesrv).await;
    place.raw.execute(article_table(arguments.db)).await;
    raw::fill(place.raw.as_mut(), "article_outbox", "article", arguments.rows, arguments.payload_bytes).await;
    let mut sender = Sender::new(&topic.client, topic.queues().await);
    let work = raw::article(
        place.raw.as_mut(),
        async |rows| {
            if each { sender.each(rows).await } else { sender.batch(rows).await }
        },
    );
    let (took, sent) = timed(server_port(arguments.db, &place.url), work).await;
    assert_eq!(sent, arguments.rows);
    topic.shows(arguments.rows).await;
    topic.delete().await;
    took
}

/// Runs it.
pub async fn run(arguments: Arguments, broker: Broker) {
    let (db, namesrv) = (arguments.db, broker.namesrv());
    let (rows, bytes) = (arguments.rows, arguments.payload_bytes);
    let mut place = raw::place(db).await;
    let mut table = Table(Vec::new());
    for _ in 0..arguments.rounds {
        place.raw.execute(&floor_tables(db, 1)).await;
        raw::fill(place.raw.as_mut(), "floor_outbox", "outhaul", rows, bytes).await;
        let port = server_port(db, &place.url);
        let (took, moved) = timed(port, place.raw.floor(1)).await;
        assert_eq!(moved, rows);
        table.took(A, took);

        let topic = Topic::make(&namesrv).await;
        table.sends(B, sends::measure(&namesrv, &topic.name, rows, bytes).await);
        topic.shows(rows).await;
        topic.delete().await;

        let topic = Topic::make(&namesrv).await;
        table.sends(C, java::measure(broker, &topic.name, rows, bytes).await);
        topic.delete().await;

        let topic = Topic::make(&namesrv).await;
        let took = drain::outhaul(&mut place, &arguments, 1, sink(&namesrv, &topic.prefix)).await;
        topic.shows(rows).await;
        table.took(OUTHAUL, took);
        topic.delete().await;

        table.took(BATCH_A_POLL, hand_made(&mut place, &arguments, &namesrv, false).await);
        table.took(SEND_A_ROW, hand_made(&mut place, &arguments, &namesrv, true).await);
    }
    let outhaul = table.median(OUTHAUL);
    println!(
        "{db:?} to {}: {rows} rows of {bytes} bytes, {} queues; medians of {} rounds",
        broker.name(),
        super::QUEUES,
        arguments.rounds
    );
    println!("{:<48} {:>9} {:>12} {:>11}", "", "seconds", "rows/s", "× Outhaul");
    for line in &table.0 {
        let s = table.median(&line.name);
        println!("{:<48} {s:>9.3} {:>12.0} {:>11.2}  {}", line.name, rows as f64 / s, s / outhaul, line.note);
    }
    println!("Outhaul / (A + B): {:.2}", outhaul / (table.median(A) + table.median(B)));
    println!("Java client / this client: {:.2} times the seconds", table.median(C) / table.median(B));
    raw::remove(db, place).await;
}
