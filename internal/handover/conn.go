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

// maxSkipped messages of unknown kinds are passed over while something is waited
// for. A later version may send some; whoever sends hundreds is out of his mind.
const maxSkipped = 256

// errClosed: the other end of the line is closed, or its process has ended.
var errClosed = errors.New("the connection has ended")

// peerConn is a connection to the other agent. One goroutine may receive while several send.
type peerConn struct {
	unixConn *net.UnixConn
	// readBuf and control take the message that is being received.
	readBuf, controlBuf []byte

	writeMu  sync.Mutex
	writeBuf []byte
}

func newPeerConn(conn *net.UnixConn) *peerConn {
	// What the kernel gives by default is enough for a message; an administrator may have
	// made that less, and then asking may help. Sending says what is wrong if not.
	_ = conn.SetWriteBuffer(4 * (maxHead + maxRest))
	return &peerConn{
		unixConn: conn,
		readBuf:  make([]byte, 3+maxHead+maxRest),
		// One file more than allowed is seen as one too many, and not as cut off.
		controlBuf: make([]byte, unix.CmsgSpace(4*(maxFiles+1))),
	}
}

// message is one that has been received. head and rest are good until the next one;
// files belong to whoever has the message.
type message struct {
	kind       messageKind
	head, rest []byte
	files      []*os.File
}

// close closes what came with m.
func (m *message) close() {
	closeFiles(m.files)
	m.files = nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// receive waits for a message until the connection's deadline. At the end of the line
// the error is errClosed.
func (l *peerConn) receive() (message, error) {
	n, oobn, flags, _, err := l.unixConn.ReadMsgUnix(l.readBuf, l.controlBuf)
	files, broken := unpackFiles(l.controlBuf[:max(oobn, 0)])
	m := message{files: files}
	switch {
	case err != nil:
		err = normalizeClosed(err)
	case broken != nil:
		err = fmt.Errorf("%w: its files can't be read: %w", errMalformed, broken)
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

// unpackFiles gives all files in a control message, also if there is an error.
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

// await receives until a message of one of these kinds comes. Others are skipped.
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
	return message{}, fmt.Errorf("%d messages in a row that nobody has asked for", maxSkipped)
}

// drain receives and drops until the line ends, or its deadline.
func (l *peerConn) drain() error {
	for {
		m, err := l.receive()
		switch {
		case err == nil:
			m.close()
		case errors.Is(err, errMalformed): // as good as unknown
		default:
			return err
		}
	}
}

// send sends a message, within the connection's deadline. The files stay the caller's; whether
// they are blocking is not touched, since that is the socket's and not the descriptor's.
func (l *peerConn) send(k messageKind, head any, rest []byte, files ...*os.File) error {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	return l.write(k, head, rest, files)
}

// sendWithin is send with a deadline of its own, also while others send.
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
				return fmt.Errorf("handing over a socket: %w", err)
			}
			fds = append(fds, fd)
		}
		control = unix.UnixRights(fds...)
	}
	_, _, err = l.unixConn.WriteMsgUnix(packed, control, nil)
	runtime.KeepAlive(files)
	return normalizeClosed(err)
}

// descriptor is f's number, good while f is open. (*os.File).Fd would make f blocking for
// all who share it.
func descriptor(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	err = raw.Control(func(number uintptr) { fd = int(number) })
	return fd, err
}

// normalizeClosed gives all errors that say that the other end is closed as errClosed.
func normalizeClosed(err error) error {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, unix.EPIPE, unix.ECONNRESET, unix.ENOTCONN, net.ErrClosed} {
		if errors.Is(err, end) {
			return errClosed
		}
	}
	return err
}

// withDeadline bounds what is received and sent until release by limit, and by ctx.
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
			<-fired // or it would end what comes next
		}
	}
}

// setDeadline sets the deadline of what is received and sent; the zero time is none. An error of it
// means that the line is closed, which the next step finds out.
func (l *peerConn) setDeadline(t time.Time) { _ = l.unixConn.SetDeadline(t) }

// close ends the line; what is under way on it ends with errClosed.
func (l *peerConn) close() { _ = l.unixConn.Close() }

// peer is who is at the other end: of a listener, who has made it. The pid is 0 if it is
// not visible in this process's namespace.
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
		return nil, fmt.Errorf("asking who is at the other end: %w", err)
	}
	return who, nil
}

// checkPeer gives an error unless the other end belongs to this user or to root.
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
