//! Round trips over TCP.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

/// Answers bytes of one client after the other, and ends with the first one that has made more than one round trip: a client that makes
/// one finds out whether the server is there.
pub fn serve(address: &str) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    loop {
        if answer(listener.accept()?.0)? > 1 {
            return Ok(());
        }
    }
}

/// Answers bytes until the client closes the connection, and returns their number.
fn answer(mut client: TcpStream) -> io::Result<u64> {
    client.set_nodelay(true)?;
    let mut byte = [0];
    let mut answered = 0;
    while client.read(&mut byte)? > 0 {
        client.write_all(&byte)?;
        answered += 1;
    }
    Ok(answered)
}

/// Makes a number of round trips.
pub fn play(address: &str, rounds: u64) -> io::Result<()> {
    let mut server = TcpStream::connect(address)?;
    server.set_nodelay(true)?;
    let mut byte = [0];
    for _ in 0..rounds {
        server.write_all(&byte)?;
        server.read_exact(&mut byte)?;
    }
    Ok(())
}
