package reflector

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// pageSize is the number of objects of a page. A page is in memory as a whole: with client-go's 500, an agent that
	// lists 2,000 Services has 3 MiB more after its start.
	pageSize = 100
	// maxPageBytes bounds a page: 100 slices of 100 endpoints in JSON are a tenth of it.
	maxPageBytes = 64 << 20
)

// listPage is the metadata of one page of a list.
type listPage struct {
	version string // the list's resourceVersion
	token   string // the continue token, "" on the last page
}

// decodePage reads one page of a list. It passes its objects to put, and the errors of
// unreadable ones to skip. An object is valid while put runs, its strings longer.
func (f *decoder) decodePage(body io.Reader, put func(runtime.Object), skip func(error)) (listPage, error) {
	data, err := io.ReadAll(io.LimitReader(body, maxPageBytes+1))
	switch {
	case err != nil:
		return listPage{}, connError(unexpectedEOF(err))
	case len(data) > maxPageBytes:
		return listPage{}, fmt.Errorf("list page exceeds %d bytes", maxPageBytes)
	}
	f.acquire()
	defer f.release()
	keep := func(obj runtime.Object, err error) {
		if err != nil {
			skip(err)
		} else {
			put(obj)
		}
	}
	if message, ok := bytes.CutPrefix(data, []byte(protobufMagic)); ok {
		return f.decodeProtobufPage(message, keep)
	}
	var list struct {
		Metadata struct{ ResourceVersion, Continue string }
		Items    []json.RawMessage
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return listPage{}, fmt.Errorf("reading a list: %w", err)
	}
	for _, item := range list.Items {
		keep(f.decode(item))
	}
	return listPage{list.Metadata.ResourceVersion, list.Metadata.Continue}, nil
}

// decodeProtobufPage reads a page in protobuf. Every list has its metadata in field 1 and
// its items in field 2.
func (f *decoder) decodeProtobufPage(message []byte, keep func(runtime.Object, error)) (listPage, error) {
	var p listPage
	_, raw, err := unwrapObject(message)
	if err != nil {
		return p, fmt.Errorf("reading a list: %w", err)
	}
	list := protobufFields{rest: raw}
	for list.next() {
		switch list.number {
		case 1:
			meta := protobufFields{rest: list.data}
			for meta.next() {
				switch meta.number {
				case 2:
					p.version = string(meta.data)
				case 3:
					p.token = string(meta.data)
				}
			}
			if meta.err != nil {
				return p, fmt.Errorf("reading a list: %w", meta.err)
			}
		case 2:
			keep(f.decodeProtobuf("", list.data))
		}
	}
	if list.err != nil {
		return p, fmt.Errorf("reading a list: %w", list.err)
	}
	return p, nil
}
