//! Codes of the command line and the configuration (OUT-3nnn), of the relay's engine and lanes (OUT-4nnn), and the page
//! of every code of the project. A number is never used again for something else.

use outhaul_sink::SinkCode;

use crate::failure::Blame;

/// One code.
#[derive(Debug, PartialEq, Eq)]
pub struct Code {
    /// `OUT-nnnn`.
    pub code: &'static str,
    /// One line on what to do.
    pub remedy: &'static str,
    /// Exit code of a command that ends with it.
    pub blame: Blame,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $blame:ident, $remedy:literal;)*) => {
        $($(#[$doc])* pub static $name: Code = Code { code: $code, remedy: $remedy, blame: Blame::$blame };)*
        /// All of them, by rising number.
        pub static CODES: &[&Code] = &[$(&$name),*];
    };
}

codes! {
    /// The configuration file cannot be read.
    NO_FILE = "OUT-3001", Usage, "name the file with `-c FILE`, or do without one: `--db URL`";
    /// The configuration file is not TOML.
    NOT_TOML = "OUT-3002", Usage, "correct the line";
    /// A key or section that nobody knows.
    UNKNOWN_KEY = "OUT-3003", Usage, "correct or remove it; docs/configuration.md lists all keys";
    /// A key that must be there is not.
    MISSING_KEY = "OUT-3004", Usage, "add the key";
    /// A value that its key does not take.
    BAD_VALUE = "OUT-3005", Usage, "correct the value";
    /// A variable or file of a `${…}` is not there.
    UNRESOLVED = "OUT-3006", Usage, "set the variable or make the file readable before the start";
    /// No database is named.
    NO_DATABASE = "OUT-3007", Usage, "add an [[outbox]] with its url, or use `--db URL`";
    /// Two entries have one name.
    NAME_TWICE = "OUT-3008", Usage, "give each a name of its own";
    /// A route names a destination that is not there.
    UNKNOWN_DESTINATION = "OUT-3009", Usage, "correct the name, or add the [[destination]]";
    /// A lease can run out during a send.
    LEASE_TOO_SHORT = "OUT-3010", Usage, "raise lease_ttl of [relay] above the longest send_limit, or lower that send_limit";
    /// More destinations than a relay serves.
    TOO_MANY_DESTINATIONS = "OUT-3011", Usage, "split them over several relays, each with an outbox of its own";
    /// Status mode is asked for.
    STATUS_MODE = "OUT-3012", Usage, "let each topic go to one destination, or use native mode (mode = \"move\"), which delivers to several";
    /// A part that this build does not have is configured.
    NOT_BUILT = "OUT-3013", Usage, "remove the section, or use a build that has it (`outhaul --version` lists what this one has)";
    /// `--to` names nothing that can be delivered to.
    BAD_TARGET = "OUT-3014", Usage, "use file:PATH, stdout:, inbox:URL or rocketmq://HOST:PORT; other kinds need a configuration file";
    /// There is nowhere to deliver to.
    NOWHERE_TO_DELIVER = "OUT-3015", Usage, "add a [[destination]] and a [[route]], or use `--to file:PATH`";
    /// An override variable names nothing.
    STRAY_OVERRIDE = "OUT-3016", Usage, "correct or unset the variable; docs/configuration.md says how they are formed";
    /// It is not clear which outbox is meant.
    WHICH_OUTBOX = "OUT-3017", Usage, "name one with `--outbox NAME`";
    /// A destination proves less than is demanded.
    ACK_TOO_WEAK = "OUT-3018", Failure, "change the destination so that it proves more, or lower require_ack";
    /// An input line cannot be enqueued.
    BAD_LINE = "OUT-3019", Failure, "correct the line, then send it and what follows it again";
    /// Whether a batch was stored is not known.
    BATCH_UNKNOWN = "OUT-3020", Failure, "send the same lines with their ids again only after `outhaul audit ID` has said that they are not there";
    /// No message has the id.
    NOT_FOUND = "OUT-3021", Failure, "check the id; a message older than the retention has been pruned";
    /// Input or output cannot be used.
    INPUT_OUTPUT = "OUT-3022", Failure, "check the file, or what reads the other end of the pipe";
    /// No such code.
    NO_SUCH_CODE = "OUT-3023", Usage, "run `outhaul explain` without a code for a list";
    /// The process cannot get what it needs from the system.
    SYSTEM = "OUT-3024", Failure, "check the limits of the process (threads, open files)";
    /// A configured check of `validate` found tables missing.
    TABLES_MISSING = "OUT-3025", Failure, "run `outhaul init`, or hand the DDL that was printed to your DBA";
    /// The demo did not show what it is there to show.
    DEMO = "OUT-3026", Failure, "run it again; if it persists, report it with its output";
    /// A relay that was to end when empty was told to end before.
    NOT_EMPTY = "OUT-3027", Failure, "run it again: it goes on where it stopped";
    /// The folder for the demo holds something already.
    FOLDER_IN_USE = "OUT-3028", Usage, "name a new or an empty folder with --dir";
    /// Nothing that is parked fits.
    NOTHING_PARKED = "OUT-3029", Failure, "see what is there with `outhaul parked list`";
    /// A message that cannot be taken back.
    NOT_CANCELLED = "OUT-3030", Failure, "see where it is with `outhaul audit ID`";
    /// No such destination or shard.
    NOTHING_THERE = "OUT-3031", Usage, "`outhaul status` lists shards and destinations";
    /// An edit of what no route names.
    EDIT_WITHOUT_ROUTE = "OUT-3032", Failure, "add a [[route]] for the topic, restart the relay and redrive it; it can be edited where it is parked then";
    /// A destination that is to be dropped, and is in the configuration.
    STILL_CONFIGURED = "OUT-3033", Usage, "take its [[destination]] and its name in routes out of the configuration, restart every relay with it, then order it again";
    /// Relays have different destinations, so that it is open what a destination's end would mean.
    RELAYS_DIFFER = "OUT-3034", Failure, "restart every relay with the same configuration, then order it again; one that was killed counts for a minute";
    /// A replay that cannot be gone on with.
    NOT_RESUMED = "OUT-3040", Usage, "`outhaul acts` lists replays and how far they have got";
    /// A replay that was stopped before its end.
    REPLAY_STOPPED = "OUT-3041", Failure, "go on where it stopped with `outhaul replay --resume NUMBER`";

    /// An address that cannot be listened at.
    ADMIN_LISTEN = "OUT-3042", Failure, "free the port, or name another address with `listen` of [admin] or --admin";
    /// A process that is to be asked, and no address.
    NO_ADMIN = "OUT-3043", Usage, "set `listen` of [admin], or name the relay's --admin address";
    /// A process that was asked and said nothing.
    NO_ANSWER = "OUT-3044", Failure, "see whether the relay runs and listens there; its supervisor should start it anew";

    /// Relays of an earlier version run, which know no acts.
    EARLIER_RELAYS = "OUT-3055", Failure, "replace every relay by one of this version, then order it again";
    /// Somebody owns shards whose number is to be changed.
    RELAYS_RUN = "OUT-3056", Failure, "stop every relay with SIGTERM, then run `outhaul reshard` again";
    /// Something is not settled, so that order would not be kept over a change of shards.
    NOT_SETTLED = "OUT-3057", Failure, "run `outhaul relay --until-empty`, settle what is parked (`outhaul parked redrive` or `skip`), then run `outhaul reshard` again";
    /// Two sides of which one cannot be read.
    NOTHING_TO_COMPARE = "OUT-3060", Usage, "name a destination of kind file, inbox or rocketmq, or compare a business table with `--query SQL`";
    /// A query whose rows cannot be compared or enqueued.
    BAD_QUERY = "OUT-3061", Usage, "let the query give id, created_at, topic, key and payload, in this order; the first alone is enough without --fix";
    /// Temporary files that cannot be made or written.
    TEMPORARY_FILES = "OUT-3062", Failure, "free space, or name a folder with more with `--temp FOLDER`";
    /// A broker whose queues cannot be read.
    BROKER_NOT_READ = "OUT-3063", Failure, "check that name server and brokers are up, and that the account may read; then run it again";
    /// Somebody else mends the outbox from a query.
    FIX_UNDER_WAY = "OUT-3070", Failure, "wait until it has ended, or, if it was killed, half a minute; then run it again";

    /// A migration that cannot be ended or undone yet, or that there is none.
    NO_MIGRATION = "OUT-3071", Failure, "`outhaul migrate` shows how far it is and what comes next";

    /// A topic that no route names.
    NO_ROUTE = "OUT-4001", Failure, "add a [[route]] for the topic and restart the relay; then `outhaul parked redrive --destination - --all --why TEXT` delivers what is parked under `-`";
    /// A row that cannot be delivered as it stands.
    ROW_DEFECT = "OUT-4002", Failure, "correct what writes such rows; `outhaul parked edit --id ID` gives the message other content, `outhaul parked skip` gives it up";
    /// A send without an answer within the limit.
    SEND_LIMIT = "OUT-4003", Failure, "look at the destination's load; raise send_limit if it is only slow";
    /// A message whose attempts are used up.
    ATTEMPTS_USED_UP = "OUT-4004", Failure, "remove the cause that the reason names, then `outhaul parked redrive --reason OUT-4004 --why TEXT`";
    /// A stop that did not finish draining in time.
    SHUTDOWN_LIMIT = "OUT-4005", Failure, "nothing is lost; see to the database error if one is named; raise shutdown_limit if a few repeated messages matter";
    /// A lease that went to another owner.
    LEASE_LOST = "OUT-4006", Failure, "nothing to do; if it repeats, look for pauses of the process or the database, or raise lease_ttl";
    /// A database that is not as the owner left it.
    CHECKPOINT_MISMATCH = "OUT-4007", Failure, "nothing to do after a TRUNCATE or a restore; otherwise look for what else writes Outhaul's tables";
    /// Another shard count than the relay works with.
    SHARD_COUNT = "OUT-4008", Failure, "restart the relay; if tables were made anew with another count, stop every relay first";
    /// A message behind a parked one of its key.
    BEHIND_PARKED = "OUT-4009", Failure, "settle the parked message before it; this one follows by itself";
    /// A lease shorter than a send, as the engine sees it.
    LEASE_BELOW_SEND = "OUT-4010", Failure, "raise lease_ttl above the longest send_limit";
    /// A log that is shorter than it was.
    LOG_WENT_BACK = "OUT-4011", Failure, "nothing to do: rows are delivered again under their ids; consumers recognise them";
    /// Positions that the log does not have.
    LOG_GAP = "OUT-4012", Failure, "find what deleted rows of outbox_log; restore them from a backup if they are needed";
    /// An id that was written twice.
    REPEATED_ID = "OUT-4013", Failure, "give each message an id of its own, or leave the id to the database";
    /// A part of the relay that ended without an answer.
    TASK_LOST = "OUT-4014", Failure, "report it with the log; the relay goes on";
    /// What a destination forgot and gets again.
    FORGOTTEN = "OUT-4015", Failure, "nothing is lost; make the destination's storage durable, or demand a level with require_ack";
    /// More forgotten than is sent again without asking.
    FORGOTTEN_TOO_MANY = "OUT-4016", Failure, "see that this is the right destination, then raise max_forgotten and start the relay again";
    /// It is not known what the destination still has.
    NOT_VERIFIED = "OUT-4017", Failure, "look at the destination and its load; the relay asks again by itself";
    /// An act that the relay cannot carry out.
    ACT_REFUSED = "OUT-4018", Failure, "read what stands beside it, and order it anew when that is mended";
    /// A folder into which pruned messages cannot be written.
    EXPORT_FOLDER = "OUT-4019", Failure, "make the folder, give the right to write in it, or free space; nothing more is pruned until then: the relay tries again by itself, `outhaul prune` when it is run again";
    /// An exported file that is not what was written.
    EXPORT_READ_BACK = "OUT-4020", Failure, "look at the disk and the file system; nothing of it was pruned";
    /// Instances that do not agree on routes and destinations.
    OTHER_CONFIGURATION = "OUT-4021", Failure, "give all instances of the outbox the same configuration, and restart those that have an older one";
    /// Something that should move and does not.
    NOT_MOVING = "OUT-4022", Failure, "`/ready`, `outhaul health` and the log say what does not move and why";
    /// An engine that does not turn any more.
    ENGINE_HANGS = "OUT-4023", Failure, "let a supervisor start the relay anew; report it with the log";
    /// A message that a replay leaves to the relay.
    LEFT_PARKED = "OUT-4030", Failure, "nothing to do where it is tried again by itself; otherwise `outhaul parked redrive` delivers it";
    /// A replay that has ended since nothing got on.
    REPLAY_GIVEN_UP = "OUT-4031", Failure, "see to what the reason names, then go on with `outhaul replay --resume NUMBER`";
    /// A replay that another process carries out.
    REPLAY_TAKEN = "OUT-4032", Failure, "nothing to do; `outhaul acts` shows who carries it out and how far it has got";
    /// A part of the log that is not there any more.
    REPLAY_PRUNED = "OUT-4033", Failure, "what is pruned cannot be replayed; a longer `retention` keeps more";
    /// A comparison by a schedule has found something.
    SCHEDULED_FOUND = "OUT-4050", Failure, "`outhaul reconcile --from TIME --destination NAME` names every id, and mends with `--fix --yes`";
    /// A comparison by a schedule has failed.
    SCHEDULED_FAILED = "OUT-4051", Failure, "see to what the reason names; it is tried again by itself";
    /// It is not clear which inbox is meant.
    WHICH_INBOX = "OUT-5058", Usage, "add an [[inbox]], or name one of several with `--inbox NAME`; without a file: `--db URL --to rocketmq://HOST:PORT --topic TOPIC --group GROUP`";
}

/// One line on what to do about a code of a destination or of this table.
pub fn remedy(code: &str) -> Option<&'static str> {
    let of_sink = SinkCode::ALL.iter().find(|c| c.code() == code).map(|c| c.remedy());
    of_sink.or_else(|| CODES.iter().find(|c| c.code == code).map(|c| c.remedy))
}

macro_rules! pages {
    ($($number:literal)*) => {
        /// Code and page of every code, by rising number.
        pub static PAGES: &[(&str, &str)] = &[
            $((concat!("OUT-", $number), include_str!(concat!("../../../docs/errors/OUT-", $number, ".md")))),*
        ];
    };
}

pages! {
    "1001" "1002" "1003" "1004" "1005" "1006" "1007" "1008" "1009" "1010" "1011" "1012" "1013" "1014" "1015" "1016"
    "1030" "1031" "1032"
    "2001" "2002" "2003" "2004" "2005" "2006" "2007" "2008" "2009" "2010" "2011" "2012" "2013" "2020" "2021" "2022"
    "2030" "2031" "2032" "2033" "2034" "2035" "2036" "2037" "2038" "2039" "2040" "2041" "2042" "2043" "2044" "2045"
    "3001" "3002" "3003" "3004" "3005" "3006" "3007" "3008" "3009" "3010" "3011" "3012" "3013" "3014" "3015" "3016"
    "3017" "3018" "3019" "3020" "3021" "3022" "3023" "3024" "3025" "3026" "3027" "3028" "3029" "3030" "3031" "3032"
    "3033" "3034" "3040" "3041" "3042" "3043" "3044" "3055" "3056" "3057" "3060" "3061" "3062" "3063" "3070" "3071"
    "4001" "4002" "4003" "4004" "4005" "4006" "4007" "4008" "4009" "4010" "4011" "4012" "4013"
    "4014" "4015" "4016" "4017" "4018" "4019" "4020" "4021" "4022" "4023" "4030" "4031" "4032" "4033"
    "4040" "4041" "4042" "4050" "4051"
    "5001" "5002" "5003" "5004" "5005" "5006" "5007" "5008" "5009" "5010" "5011" "5012"
    "5020" "5021" "5022" "5023" "5024" "5025" "5026" "5027" "5028" "5029" "5030" "5031" "5032" "5033" "5034" "5035" "5036"
    "5037"
    "5050" "5051" "5052" "5053" "5054" "5055" "5056" "5057" "5058" "5059"
}

/// The title of a page: its first line, without the mark of a heading.
pub fn title(page: &str) -> &str {
    page.lines().next().unwrap_or_default().trim_start_matches(['#', ' '])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use outhaul_store::StoreErrorKind;

    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            if entry.is_dir() {
                sources(&entry, found);
            } else if entry.extension().is_some_and(|e| e == "rs") {
                found.push(entry);
            }
        }
    }

    fn codes_in(text: &str) -> impl Iterator<Item = &str> {
        text.match_indices("\"OUT-").filter_map(|(at, _)| {
            let code = text.get(at + 1..at + 9)?;
            code.bytes().skip(4).all(|b| b.is_ascii_digit()).then_some(code)
        })
    }

    #[test]
    fn every_code_in_the_sources_has_a_page() {
        let mut files = vec![];
        for krate in std::fs::read_dir(root().join("crates")).unwrap().map(|e| e.unwrap().path().join("src")) {
            // Test kit and benches have codes that nobody else meets.
            if krate.is_dir() && !["outhaul-testkit/src", "outhaul-bench/src"].iter().any(|end| krate.ends_with(end)) {
                sources(&krate, &mut files);
            }
        }
        let pages: BTreeSet<&str> = PAGES.iter().map(|(code, _)| *code).collect();
        assert!(files.len() > 30);
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            for code in codes_in(&text).filter(|c| !c.starts_with("OUT-9")) {
                assert!(pages.contains(code), "{code} of {} has no page in docs/errors", file.display());
            }
        }
    }

    #[test]
    fn pages_and_files_are_the_same_and_say_all_three_things() {
        let listed: BTreeSet<String> = PAGES.iter().map(|(code, _)| format!("{code}.md")).collect();
        let files: BTreeSet<String> = std::fs::read_dir(root().join("docs/errors"))
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(listed, files);
        assert!(PAGES.windows(2).all(|w| w[0].0 < w[1].0));
        for (code, page) in PAGES {
            assert!(page.starts_with(&format!("# {code} ")), "{code}");
            for part in ["## What happened", "## What it means for the data", "## What to do"] {
                assert!(page.contains(part), "{code}: {part}");
            }
            assert!(page.lines().all(|l| l.chars().count() <= 120), "{code}: a line is too long");
        }
    }

    /// What is called for as `outhaul …` can be called.
    #[test]
    fn remedies_name_commands_that_there_are() {
        use clap::CommandFactory;
        let program = crate::arguments::Arguments::command();
        let mut texts: Vec<&str> = PAGES.iter().map(|(_, page)| *page).collect();
        texts.extend(CODES.iter().map(|c| c.remedy));
        texts.extend(SinkCode::ALL.iter().map(|c| c.remedy()));
        texts.extend(
            [
                StoreErrorKind::Permission,
                StoreErrorKind::NotInitialised,
                StoreErrorKind::WrongSchema,
                StoreErrorKind::Other,
            ]
            .map(StoreErrorKind::remedy),
        );
        let mut called = 0;
        for text in texts {
            for call in text.split('`').skip(1).step_by(2).filter_map(|quoted| quoted.strip_prefix("outhaul ")) {
                let mut words = call.split_whitespace();
                let Some(name) = words.next().filter(|w| !w.starts_with('-')) else { continue };
                let mut command = program.find_subcommand(name).unwrap_or_else(|| panic!("no `outhaul {call}`"));
                let mut words = words.peekable();
                while command.has_subcommands() {
                    let Some(name) = words.next() else { break };
                    command = command.find_subcommand(name).unwrap_or_else(|| panic!("no `outhaul {call}`"));
                }
                for flag in words.filter_map(|w| w.strip_prefix("--")) {
                    let all = command.get_arguments().chain(program.get_arguments());
                    assert!(all.into_iter().any(|a| a.get_long() == Some(flag)), "no --{flag}: `outhaul {call}`");
                }
                called += 1;
            }
        }
        assert!(called > 10);
    }

    #[test]
    fn codes_rise() {
        assert!(CODES.windows(2).all(|w| w[0].code < w[1].code));
        assert_eq!(StoreErrorKind::Unavailable.code(), "OUT-1001");
        assert!(SinkCode::ALL.iter().all(|c| remedy(c.code()) == Some(c.remedy())));
        assert!(remedy("OUT-9999").is_none());
    }
}
