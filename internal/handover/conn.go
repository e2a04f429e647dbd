package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxSkipped bounds the messages of unknown kinds that await skips. A later version may send
// some.
const maxSkipped = 256

// errClosed: the other end has closed the connection, or its process has ended.
var errClosed = errors.New("the connection has ended")

// peerConn is a connection to another agent. One goroutine may receive while several send.
type peerConn struct {
	unixConn *net.UnixConn
	// readBuf and control take the message that is being received.
	readBuf, controlBuf []byte

	writeMu  sync.Mutex
	writeBuf []byte
}

func newPeerConn(conn *net.UnixConn) *peerConn {
	// The kernel's default buffer holds a message, but the administrator may have lowered it.
	// If this fails, sending returns the error.
	_ = conn.SetWriteBuffer(4 * (maxHead + maxRest))
	return &peerConn{
		unixConn: conn,
		readBuf:  make([]byte, 3+maxHead+maxRest),
		// One more file than allowed is received as too many, not truncated.
		controlBuf: make([]byte, unix.CmsgSpace(4*(maxFiles+1))),
	}
}

// message is a received message. head and rest are valid until the next receive; the owner of
// the message closes its files.
type message struct {
	kind       messageKind
	head, rest []byte
	files      []*os.File
}

// close closes m's files.
func (m *message) close() {
	closeFiles(m.files)
	m.files = nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// receive waits for a message until the connection's deadline. If the connection is closed,
// the error is errClosed.
func (l *peerConn) receive() (message, error) {
	n, oobn, flags, _, err := l.unixConn.ReadMsgUnix(l.readBuf, l.controlBuf)
	if errors.Is(err, unix.ECONNRESET) {
		// The other end has closed without reading everything. The kernel says so once, before
		// the messages that the other end had sent.
		n, oobn, flags, _, err = l.unixConn.ReadMsgUnix(l.readBuf, l.controlBuf)
	}
	files, broken := unpackFiles(l.controlBuf[:max(oobn, 0)])
	m := message{files: files}
	switch {
	case err != nil:
		err = normalizeClosed(err)
	case broken != nil:
		err = fmt.Errorf("%w: unreadable files: %w", errMalformed, broken)
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = fmt.Errorf("%w: longer than %d bytes or with more than %d files, or this process may not open more",
			errMalformed, len(l.readBuf), maxFiles)
	case len(files) > maxFiles:
		err = fmt.Errorf("%w: it comes with more than %d files", errMalformed, maxFiles)
	default:
		m.kind, m.head, m.rest, err = unpack(l.readBuf[:n])
	}
	if err != nil {
		m.close()
		return message{}, err
	}
	return m, nil
}

// unpackFiles returns all files in a control message, even with an error.
func unpackFiles(control []byte) (files []*os.File, err error) {
	if len(control) == 0 {
		return nil, nil
	}
	parts, err := unix.ParseSocketControlMessage(control)
	for _, part := range parts {
		if part.Header.Level != unix.SOL_SOCKET || part.Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, fault := unix.ParseUnixRights(&part)
		err = errors.Join(err, fault)
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "handed over"))
		}
	}
	return files, err
}

// await receives a message of one of kinds, and skips others.
func (l *peerConn) await(kinds ...messageKind) (message, error) {
	for range maxSkipped {
		m, err := l.receive()
		if err != nil {
			return message{}, err
		}
		for _, k := range kinds {
			if m.kind == k {
				return m, nil
			}
		}
		m.close()
	}
	return message{}, fmt.Errorf("%d unexpected messages in a row", maxSkipped)
}

// drain receives and drops messages until the connection ends, or until its deadline.
func (l *peerConn) drain() error {
	for {
		m, err := l.receive()
		switch {
		case err == nil:
			m.close()
		case errors.Is(err, errMalformed): // like an unknown kind
		default:
			return err
		}
	}
}

// send sends a message within the connection's deadline. The files stay open, and their
// blocking mode, which all descriptors of a socket share, is not changed.
func (l *peerConn) send(k messageKind, head any, rest []byte, files ...*os.File) error {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	return l.write(k, head, rest, files)
}

// sendWithin is send with its own timeout. It is safe for concurrent use.
func (l *peerConn) sendWithin(limit time.Duration, k messageKind, head any, rest []byte, files ...*os.File) error {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	_ = l.unixConn.SetWriteDeadline(time.Now().Add(limit))
	return l.write(k, head, rest, files)
}

func (l *peerConn) write(k messageKind, head any, rest []byte, files []*os.File) error {
	packed, err := pack(l.writeBuf[:0], k, head, rest)
	if err != nil {
		return err
	}
	l.writeBuf = packed
	var control []byte
	if len(files) > 0 {
		fds := make([]int, 0, len(files))
		for _, f := range files {
			fd, err := descriptor(f)
			if err != nil {
				return fmt.Errorf("sending a socket: %w", err)
			}
			fds = append(fds, fd)
		}
		control = unix.UnixRights(fds...)
	}
	_, _, err = l.unixConn.WriteMsgUnix(packed, control, nil)
	runtime.KeepAlive(files)
	return normalizeClosed(err)
}

// descriptor returns f's number, valid while f is open. (*os.File).Fd would make f blocking,
// also in the process that shares it.
func descriptor(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	err = raw.Control(func(number uintptr) { fd = int(number) })
	return fd, err
}

// normalizeClosed returns errClosed for all errors that mean that the connection is closed.
func normalizeClosed(err error) error {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, unix.EPIPE, unix.ECONNRESET, unix.ENOTCONN, net.ErrClosed} {
		if errors.Is(err, end) {
			return errClosed
		}
	}
	return err
}

// withDeadline bounds sending and receiving by limit and by ctx, until release is called.
func (l *peerConn) withDeadline(ctx context.Context, limit time.Duration) (release func()) {
	end := time.Now().Add(limit)
	if t, set := ctx.Deadline(); set && t.Before(end) {
		end = t
	}
	l.setDeadline(end)
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(fired)
		l.setDeadline(time.Unix(1, 0))
	})
	return func() {
		if !stop() {
			<-fired // else it would cancel a later step
		}
	}
}

// setDeadline sets the deadline of sending and receiving; the zero time means none. It ignores
// the error of a closed connection, which the next step returns.
func (l *peerConn) setDeadline(t time.Time) { _ = l.unixConn.SetDeadline(t) }

// close closes the connection. Pending calls return errClosed.
func (l *peerConn) close() { _ = l.unixConn.Close() }

// peer returns the process at the other end; for an accepted connection, the one that
// connected. The pid is 0 if it is not visible in this process's namespace.
func (l *peerConn) peer() (*unix.Ucred, error) {
	raw, err := l.unixConn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var who *unix.Ucred
	var fault error
	err = raw.Control(func(fd uintptr) {
		who, fault = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, fault); err != nil {
		return nil, fmt.Errorf("reading the peer credentials: %w", err)
	}
	return who, nil
}

// checkPeer returns an error unless the other end belongs to this user or to root.
func (l *peerConn) checkPeer() (*unix.Ucred, error) {
	who, err := l.peer()
	if err != nil {
		return nil, err
	}
	if who.Uid != 0 && int(who.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("the process at the other end (pid %d) belongs to user %d, neither to this agent's nor to root", who.Pid, who.Uid)
	}
	return who, nil
}

// waitClosed waits until the connection ends, or ctx is done.
func (l *peerConn) waitClosed(ctx context.Context) {
	l.setDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { l.setDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = l.drain()
}

// exchangeHello sends hi and returns the other end's hello.
func (l *peerConn) exchangeHello(ctx context.Context, limit time.Duration, hi helloHead) (helloHead, error) {
	defer l.withDeadline(ctx, limit)()
	if err := l.send(kindHello, hi, nil); err != nil {
		return helloHead{}, err
	}
	return l.receiveHello()
}

// receiveHello receives a hello, the first message in every version of the protocol.
func (l *peerConn) receiveHello() (helloHead, error) {
	m, err := l.receive()
	if err != nil {
		return helloHead{}, err
	}
	m.close()
	if m.kind != kindHello {
		return helloHead{}, fmt.Errorf("%w of kind %d instead of hello", errMalformed, m.kind)
	}
	var hi helloHead
	err = decode(m.kind, m.head, &hi)
	return hi, err
}
