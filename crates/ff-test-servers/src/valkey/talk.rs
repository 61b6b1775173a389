//! The little of the protocol that it takes to set a server up.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a server answers to one command, as text.
pub(super) fn ask(port: u16, command: &[&str]) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut request = format!("*{}\r\n", command.len());
    for word in command {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(request.as_bytes())?;
    answer(&mut BufReader::new(stream))
}

fn answer(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let line = line.trim_end();
    let odd = || io::Error::other(format!("an answer that is not understood: {line:?}"));
    let kind = line.chars().next().ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    let rest = &line[kind.len_utf8()..];
    match kind {
        '+' | ':' => Ok(rest.to_owned()),
        '-' => Err(io::Error::other(rest.to_owned())),
        '$' => {
            let Ok(length) = rest.parse::<usize>() else { return Ok(String::new()) };
            let mut bytes = vec![0; length + 2];
            reader.read_exact(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
        }
        '*' => {
            let count: usize = rest.parse().map_err(|_| odd())?;
            let parts: io::Result<Vec<String>> = (0..count).map(|_| answer(reader)).collect();
            Ok(parts?.join("\n"))
        }
        _ => Err(odd()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> io::Result<String> {
        answer(&mut text.as_bytes())
    }

    #[test]
    fn answers_of_every_kind_are_text() {
        assert_eq!(read("+PONG\r\n").unwrap(), "PONG");
        assert_eq!(read(":7\r\n").unwrap(), "7");
        assert_eq!(read("$3\r\na\nb\r\n").unwrap(), "a\nb");
        assert_eq!(read("$-1\r\n").unwrap(), "");
        assert_eq!(read("*2\r\n+a\r\n:1\r\n").unwrap(), "a\n1");
        assert!(read("-ERR no\r\n").unwrap_err().to_string().contains("no"));
        assert!(read("").is_err());
    }
}
