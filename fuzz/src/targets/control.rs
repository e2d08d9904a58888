//! The control socket.

use stile::control::protocol::{Reply, Request, read, write};

use crate::marks::reach;
use crate::target::Target;

/// Lines of a client, and replies of a machine: any lines.
pub const REQUESTS: Target =
    Target { name: "control", run: requests, seeds: lines, mutations: 4000, marks: &["request", "no request", "reply", "input", "end"] };

/// Lines with each message.
fn lines() -> Vec<Vec<u8>> {
    let requests = r#"{"type":"hello","version":1}
{"type":"status"}
{"type":"attach","vm":"web"}
{"type":"attach","vm":null}
{"type":"input","bytes":"ls\r\u00ff"}
{"type":"stop"}
"#;
    let status = r#"{"type":"status","name":"m","pid":1,"arch":"aarch64","seconds":2,"vms":[{"name":"a","state":"running"}]}"#;
    let replies = [
        r#"{"type":"hello","version":1}"#,
        status,
        r#"{"type":"attached","vm":"a","scrollback":"x\n"}"#,
        r#"{"type":"output","bytes":"\u0000"}"#,
        r#"{"type":"state","vm":"a","state":"crashed"}"#,
        r#"{"type":"refused","message":"no"}"#,
        r#"{"type":"ended"}"#,
        "",
    ];
    vec![requests.into(), replies.join("\n").into()]
}

fn requests(bytes: &[u8]) {
    let mut lines = bytes;
    loop {
        match read::<Request>(&mut lines) {
            Ok(Some(request)) => {
                reach("request");
                if let Request::Input { .. } = request {
                    reach("input");
                }
                let mut line = Vec::new();
                write(&mut line, &request).expect("a vector takes all");
                assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1, "one line");
                assert_eq!(read(&mut &line[..]).expect("it was written"), Some(request));
            }
            Ok(None) => break reach("end"),
            Err(_) => reach("no request"),
        }
    }
    let mut lines = bytes;
    while let Ok(Some(reply)) = read::<Reply>(&mut lines) {
        reach("reply");
        let mut line = Vec::new();
        write(&mut line, &reply).expect("a vector takes all");
        assert_eq!(read(&mut &line[..]).expect("it was written"), Some(reply));
    }
}
