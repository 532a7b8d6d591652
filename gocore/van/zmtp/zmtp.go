// Package zmtp is the accepting side of ZeroMQ's wire protocol, as a ROUTER socket that receives, and answers by single frames: ZMTP 3 (RFC 23 and
// 37) and ZMTP 2 (RFC 15, libzmq 3) with the mechanism NULL. It keeps nothing of a peer but its identity, so that the caller decides
// which of a peer's bytes get memory.
package zmtp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

const (
	versionBytes  = 11 // of a greeting: the signature, and the version
	greetingBytes = 64 // of version 3
	maxCommand    = 4096
	router        = 6 // the socket types of version 2
	dealer        = 5
)

// Flags of a frame.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

var (
	opening = []byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3}                    // signature, version 3
	rest3   = append([]byte("\x00NULL"), make([]byte, greetingBytes-16)...)    // minor version, mechanism, as-server, filler
	ready   = []byte("\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER") // a command frame
	rest2   = []byte{router, 0, 0}                                             // socket type, and an empty identity as a frame
)

var errNotZeroMQ = errors.New("it does not speak ZeroMQ's protocol of version 2 or 3")

// Accept shakes hands with a DEALER, and returns its identity. io.EOF means that the peer has closed the connection without
// a word.
func Accept(r *bufio.Reader, w io.Writer) (identity []byte, err error) {
	if _, err := w.Write(opening); err != nil {
		return nil, err
	}
	var b [greetingBytes]byte
	if _, err := io.ReadFull(r, b[:versionBytes]); err != nil {
		return nil, err
	}
	if b[0] != 0xff || b[9] != 0x7f {
		return nil, errNotZeroMQ
	}
	switch version := b[versionBytes-1]; {
	case version == 1: // as ZMTP 2 numbers itself
		return accept2(r, w)
	case version >= 3:
		return accept3(r, w, b[versionBytes:])
	}
	return nil, errNotZeroMQ
}

// accept2 ends a handshake of version 2: the socket type, and the identity as a frame.
func accept2(r *bufio.Reader, w io.Writer) ([]byte, error) {
	if _, err := w.Write(rest2); err != nil {
		return nil, err
	}
	kind, err := r.ReadByte()
	if err != nil {
		return nil, noEOF(err)
	}
	if kind != dealer {
		return nil, fmt.Errorf("its socket is of type %d, expected DEALER", kind)
	}
	h, err := ReadHeader(r)
	if err != nil {
		return nil, noEOF(err)
	}
	if h.More || h.Command || h.Size > 255 {
		return nil, errors.New("its identity makes no sense")
	}
	return body(r, h)
}

// accept3 ends a handshake of version 3: the rest of the greeting, and READY.
func accept3(r *bufio.Reader, w io.Writer, b []byte) ([]byte, error) {
	if _, err := w.Write(rest3); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, noEOF(err)
	}
	if mechanism := bytes.TrimRight(b[1:21], "\x00"); string(mechanism) != "NULL" {
		return nil, fmt.Errorf("its security mechanism is %.20q, expected NULL", mechanism)
	}
	if _, err := w.Write(ready); err != nil {
		return nil, err
	}
	h, err := ReadHeader(r)
	if err != nil {
		return nil, noEOF(err)
	}
	if !h.Command || h.More || h.Size > maxCommand {
		return nil, errors.New("its first frame is not READY")
	}
	command, err := body(r, h)
	if err != nil {
		return nil, err
	}
	return parseReady(command)
}

func body(r *bufio.Reader, h Header) ([]byte, error) {
	b := make([]byte, h.Size)
	_, err := io.ReadFull(r, b)
	return b, noEOF(err)
}

// noEOF keeps the end of a connection within a handshake apart from one before it.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// parseReady returns the identity that a READY command states.
func parseReady(b []byte) (identity []byte, err error) {
	properties, ok := bytes.CutPrefix(b, []byte("\x05READY"))
	if !ok {
		return nil, errors.New("its first command is not READY")
	}
	socket := ""
	for len(properties) > 0 {
		name, value, left, ok := cutProperty(properties)
		if !ok {
			return nil, errors.New("its READY command makes no sense")
		}
		switch strings.ToLower(name) {
		case "identity":
			identity = value
		case "socket-type":
			socket = string(value)
		}
		properties = left
	}
	if socket != "DEALER" {
		return nil, fmt.Errorf("its socket is of type %.20q, expected DEALER", socket)
	}
	return identity, nil
}

// cutProperty cuts the first property: the length of its name in 1 byte, its name, the length of its value in 4, its value.
func cutProperty(b []byte) (name string, value, left []byte, ok bool) {
	n := int(b[0])
	b = b[1:]
	if len(b) < n+4 {
		return "", nil, nil, false
	}
	size := binary.BigEndian.Uint32(b[n:])
	name, b = string(b[:n]), b[n+4:]
	if uint64(size) > uint64(len(b)) {
		return "", nil, nil, false
	}
	return name, b[:size], b[size:], true
}

// Header is the header of a frame.
type Header struct {
	More    bool // another frame of the message follows
	Command bool // not a part of a message
	Size    uint64
}

// ReadHeader reads the header of the next frame. io.EOF means that the connection has ended between two frames.
func ReadHeader(r *bufio.Reader) (Header, error) {
	flags, err := r.ReadByte()
	if err != nil {
		return Header{}, err
	}
	h := Header{More: flags&flagMore != 0, Command: flags&flagCommand != 0}
	if flags&^(flagMore|flagLong|flagCommand) != 0 || h.More && h.Command {
		return h, fmt.Errorf("a frame with the flags %#x", flags)
	}
	if flags&flagLong == 0 {
		size, err := r.ReadByte()
		h.Size = uint64(size)
		return h, noEOF(err)
	}
	var b [8]byte
	_, err = io.ReadFull(r, b[:])
	h.Size = binary.BigEndian.Uint64(b[:])
	return h, noEOF(err)
}

// ReadMessageHeader is ReadHeader without commands, which are skipped: version 3.0 gives them no meaning after READY.
func ReadMessageHeader(r *bufio.Reader) (Header, error) {
	for {
		h, err := ReadHeader(r)
		if err != nil || !h.Command {
			return h, err
		}
		if h.Size > maxCommand {
			return h, fmt.Errorf("a command of %d bytes, at most %d", h.Size, maxCommand)
		}
		if _, err := r.Discard(int(h.Size)); err != nil {
			return h, noEOF(err)
		}
	}
}

// AppendFrame appends a message of one frame to b.
func AppendFrame(b, frame []byte) []byte {
	if len(frame) <= 255 {
		b = append(b, 0, byte(len(frame)))
	} else {
		b = binary.BigEndian.AppendUint64(append(b, flagLong), uint64(len(frame)))
	}
	return append(b, frame...)
}
