package reflector

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// pageSize is the number of objects of a page in JSON, which is in memory as a whole. A list in protobuf is
	// decoded as it arrives and has one page: each page costs the API server some milliseconds beside its objects.
	pageSize = 100
	// maxPageBytes bounds a page in JSON: 100 slices of 100 endpoints are a tenth of it.
	maxPageBytes = 64 << 20
)

// errLongPage is a page in JSON of more than maxPageBytes.
var errLongPage = fmt.Errorf("list page exceeds %d bytes", maxPageBytes)

// listPage is the metadata of one page of a list.
type listPage struct {
	version string // the list's resourceVersion
	token   string // the continue token, "" on the last page
}

// pageReader reads one page of a list.
type pageReader struct {
	*decoder
	page listPage
	// put receives the objects, skip the errors of those that can't be read. An object is valid while put runs,
	// its strings longer.
	put  func(runtime.Object)
	skip func(error)
}

// decodePage reads one page of a list from body. It passes its objects to put and the errors of unreadable ones to
// skip, as they arrive. An object is valid while put runs, its strings longer.
func (f *decoder) decodePage(body io.Reader, put func(runtime.Object), skip func(error)) (listPage, error) {
	f.acquire()
	defer f.release()
	r := pageReader{decoder: f, put: put, skip: skip}
	in := bufio.NewReaderSize(body, readBufferSize)
	read := r.readJSON
	if magic, err := in.Peek(len(protobufMagic)); err == nil && string(magic) == protobufMagic {
		read = r.readProtobuf
	}
	if err := read(in); err != nil {
		return listPage{}, fmt.Errorf("reading a list: %w", err)
	}
	return r.page, nil
}

// keep passes on one object, or the error of decoding it.
func (r *pageReader) keep(obj runtime.Object, err error) {
	if err != nil {
		r.skip(err)
	} else {
		r.put(obj)
	}
}

func (r *pageReader) readJSON(in *bufio.Reader) error {
	data, err := io.ReadAll(io.LimitReader(in, maxPageBytes+1))
	switch {
	case err != nil:
		return connError(unexpectedEOF(err))
	case len(data) > maxPageBytes:
		return errLongPage
	}
	var list struct {
		Metadata struct{ ResourceVersion, Continue string }
		Items    []json.RawMessage
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	for _, item := range list.Items {
		r.keep(r.decode(item))
	}
	r.page = listPage{list.Metadata.ResourceVersion, list.Metadata.Continue}
	return nil
}

// readProtobuf reads the envelope of a list (runtime.Unknown), whose field 2 is the list.
func (r *pageReader) readProtobuf(in *bufio.Reader) error {
	message := protobufReader{in: in}
	if err := message.skip(uint64(len(protobufMagic))); err != nil {
		return err
	}
	for {
		number, size, err := message.nextField()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case number == 2:
			err = r.readItems(&message, size)
		default:
			err = message.skip(size)
		}
		if err != nil {
			return err
		}
	}
}

// readItems reads the message of a list, of size bytes. Every list has its metadata in field 1 and its items in
// field 2.
func (r *pageReader) readItems(message *protobufReader, size uint64) error {
	for end := message.read + size; message.read < end; {
		number, size, err := message.nextField()
		switch {
		case err != nil:
			return unexpectedEOF(err)
		case message.read > end || size > end-message.read:
			return errProtobuf
		}
		if err := r.readField(message, number, size); err != nil {
			return err
		}
	}
	return nil
}

// readField reads a field of a list, of size bytes.
func (r *pageReader) readField(message *protobufReader, number int, size uint64) error {
	if number == 2 && size > maxEventBytes {
		r.skip(decodeError{fmt.Errorf("%d bytes exceed the limit of %d", size, maxEventBytes)})
	}
	if number > 2 || size > maxEventBytes {
		return message.skip(size)
	}
	if err := message.readField(&r.current.frame, size); err != nil {
		return err
	}
	if number == 2 {
		r.keep(r.decodeProtobuf("", r.current.frame))
		return nil
	}
	return r.readMetadata(r.current.frame)
}

// readMetadata reads the metadata of a list (metav1.ListMeta).
func (r *pageReader) readMetadata(message []byte) error {
	meta := protobufFields{rest: message}
	for meta.next() {
		switch meta.number {
		case 2:
			r.page.version = string(meta.data)
		case 3:
			r.page.token = string(meta.data)
		}
	}
	return meta.err
}
