//! The little of the protocol that it takes to set a server up.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a server answers to one command, as text; one line for each part.
pub(super) fn ask(port: u16, command: &[&str]) -> io::Result<String> {
    let words: Vec<&[u8]> = command.iter().map(|word| word.as_bytes()).collect();
    ask_bytes(port, &words).map(|parts| text(&parts))
}

/// What a server answers to one command, part by part.
pub(super) fn ask_bytes(port: u16, command: &[&[u8]]) -> io::Result<Vec<Vec<u8>>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut request = format!("*{}\r\n", command.len()).into_bytes();
    for word in command {
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    stream.write_all(&request)?;
    let mut parts = Vec::new();
    answer(&mut BufReader::new(stream), &mut parts)?;
    Ok(parts)
}

fn text(parts: &[Vec<u8>]) -> String {
    let parts: Vec<_> = parts.iter().map(|part| String::from_utf8_lossy(part)).collect();
    parts.join("\n")
}

fn answer(reader: &mut impl BufRead, parts: &mut Vec<Vec<u8>>) -> io::Result<()> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let line = line.trim_end();
    let odd = || io::Error::other(format!("an answer that is not understood: {line:?}"));
    let kind = line.chars().next().ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    let rest = &line[kind.len_utf8()..];
    match kind {
        '+' | ':' => parts.push(rest.as_bytes().to_vec()),
        '-' => return Err(io::Error::other(rest.to_owned())),
        '$' => {
            let mut bytes = Vec::new();
            if let Ok(length) = rest.parse::<usize>() {
                bytes.resize(length + 2, 0);
                reader.read_exact(&mut bytes)?;
                bytes.truncate(length);
            }
            parts.push(bytes);
        }
        '*' => {
            let count: usize = rest.parse().map_err(|_| odd())?;
            (0..count).try_for_each(|_| answer(reader, parts))?;
        }
        _ => return Err(odd()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(told: &str) -> io::Result<String> {
        let mut parts = Vec::new();
        answer(&mut told.as_bytes(), &mut parts)?;
        Ok(text(&parts))
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
