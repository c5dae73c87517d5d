package runner

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"takt/store"
)

// Sizes and signatures of a zip archive's records.
const (
	endBytes, end64Bytes, locatorBytes, headerBytes = 22, 56, 20, 46

	endSignature, end64Signature       = "PK\x05\x06", "PK\x06\x06"
	locatorSignature, headerSignature  = "PK\x06\x07", "PK\x01\x02"
	directoryBytes, directoryEntrySize = 1 << 20, 256 // a directory has at most the first, and the second for each entry
)

// A part of a directory has at most about this many entries and bytes.
const partEntries, partBytes = 512, 256 << 10

var errNoZip = errors.New("not a zip archive")

// directory is the central directory of a zip archive. It is read a part at a time, because
// archive/zip would keep all entries in memory.
type directory struct {
	archive io.ReaderAt
	size    int64 // the archive's
	base    int64 // what the archive's offsets count from: not 0 if something stands before it
	start   int64 // of the first entry
}

// openDirectory finds the directory and checks that it has at most most entries, and few bytes
// for each. It trusts the archive's end record no further than to refuse at once what that says
// is too much: the entries are counted.
func openDirectory(archive io.ReaderAt, size int64, most int) (*directory, error) {
	tail := make([]byte, min(size, math.MaxUint16+endBytes))
	if _, err := archive.ReadAt(tail, size-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	at := bytes.LastIndex(tail, []byte(endSignature))
	if at < 0 || len(tail)-at < endBytes {
		return nil, errNoZip
	}
	end, record, le := size-int64(len(tail)-at), tail[at:], binary.LittleEndian
	entries, length, offset := uint64(le.Uint16(record[10:])), uint64(le.Uint32(record[12:])), uint64(le.Uint32(record[16:]))
	if entries == math.MaxUint16 || length == math.MaxUint32 || offset == math.MaxUint32 {
		record, err := end64(archive, end-locatorBytes)
		if err != nil {
			return nil, err
		}
		if record != nil {
			end = int64(le.Uint64(record))
			entries, length, offset = le.Uint64(record[8+32:]), le.Uint64(record[8+40:]), le.Uint64(record[8+48:])
		}
	}
	if entries > uint64(most) {
		return nil, errTooMany(most)
	}
	if length > directoryBytes+directoryEntrySize*uint64(most) {
		return nil, errDirectory()
	}
	d := &directory{archive: archive, size: size, start: end - int64(length)}
	if d.base = d.start - int64(offset); d.start < 0 || d.base < 0 || offset > uint64(size) {
		return nil, errNoZip
	}
	var header [headerBytes]byte
	if _, err := archive.ReadAt(header[:], int64(offset)); d.base > 0 && err == nil && string(header[:4]) == headerSignature {
		d.base, d.start = 0, int64(offset) // as archive/zip: the record's length is wrong
	}
	found := 0
	err := d.parts(func(_, to int64, n int) error {
		switch found += n; {
		case found > most:
			return errTooMany(most)
		case to-d.start > directoryBytes+directoryEntrySize*int64(found):
			return errDirectory()
		}
		return nil
	})
	if err == nil && uint16(found) != uint16(entries) { // archives of more than 65535 entries may say less
		err = errNoZip
	}
	return d, err
}

func errTooMany(most int) error { return fmt.Errorf("more than %d entries", most) }

func errDirectory() error {
	return errors.New("the directory of the archive is too large for its entries")
}

// end64 returns the zip64 end record that the locator at an offset names, behind 8 bytes with
// its place; nil if there is none.
func end64(archive io.ReaderAt, locator int64) ([]byte, error) {
	record := make([]byte, 8+end64Bytes)
	var l [locatorBytes]byte
	if locator < 0 {
		return nil, nil
	}
	if _, err := archive.ReadAt(l[:], locator); err != nil {
		return nil, err
	}
	if string(l[:4]) != locatorSignature {
		return nil, nil
	}
	copy(record, l[8:16])
	at := binary.LittleEndian.Uint64(record)
	if at > uint64(locator) {
		return nil, errNoZip
	}
	if _, err := archive.ReadAt(record[8:], int64(at)); err != nil {
		return nil, err
	}
	if string(record[8:12]) != end64Signature {
		return nil, errNoZip
	}
	return record, nil
}

// parts calls f for one part of the directory after the other: its bounds, and how many entries
// it has.
func (d *directory) parts(f func(from, to int64, entries int) error) error {
	r := bufio.NewReader(io.NewSectionReader(d.archive, d.start, d.size-d.start))
	from, to, n := d.start, d.start, 0
	for more := true; more; {
		header, err := r.Peek(headerBytes)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if more = err == nil && string(header[:4]) == headerSignature; more {
			le := binary.LittleEndian
			length := headerBytes + int(le.Uint16(header[28:])) + int(le.Uint16(header[30:])) + int(le.Uint16(header[32:]))
			if _, err := r.Discard(length); err != nil {
				return errNoZip
			}
			to, n = to+int64(length), n+1
		}
		if n == partEntries || to-from > partBytes || !more && n > 0 {
			if err := f(from, to, n); err != nil {
				return err
			}
			from, n = to, 0
		}
	}
	return nil
}

// each calls f for each entry, until f fails or ctx ends.
func (d *directory) each(ctx context.Context, f func(entry *zip.File) error) error {
	return d.parts(func(from, to int64, n int) error {
		v := newView(d, from, to, n)
		z, err := zip.NewReader(v, v.size+int64(len(v.end)))
		if err != nil && !errors.Is(err, zip.ErrInsecurePath) { // entryName judges
			return fmt.Errorf("reading the zip archive: %w", err)
		}
		if len(z.File) != n {
			return errNoZip
		}
		for _, entry := range z.File {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := f(entry); err != nil {
				return fmt.Errorf("entry %q: %w", store.Clip(entry.Name, 200), err)
			}
		}
		return nil
	})
}

// view is an archive whose directory is a part of another one's: the first size bytes of that,
// counted from its base, and end records.
type view struct {
	archive    io.ReaderAt
	base, size int64
	end        []byte
}

func newView(d *directory, from, to int64, entries int) view {
	v, le := view{archive: d.archive, base: d.base, size: to - d.base}, binary.LittleEndian
	at, n := uint64(v.size), uint64(entries)
	v.end = append(v.end, end64Signature...)
	v.end = le.AppendUint64(v.end, end64Bytes-12)
	v.end = append(v.end, make([]byte, 12)...) // versions and disks
	v.end = le.AppendUint64(v.end, n)
	v.end = le.AppendUint64(v.end, n)
	v.end = le.AppendUint64(v.end, uint64(to-from))
	v.end = le.AppendUint64(v.end, uint64(from-d.base))
	v.end = append(v.end, locatorSignature+"\x00\x00\x00\x00"...)
	v.end = le.AppendUint64(v.end, at)
	v.end = append(v.end, "\x01\x00\x00\x00"+endSignature+"\x00\x00\x00\x00"...)
	v.end = append(v.end, bytes.Repeat([]byte{0xff}, 12)...) // the other record has the numbers
	v.end = append(v.end, 0, 0)
	return v
}

// ReadAt implements [io.ReaderAt].
func (v view) ReadAt(p []byte, off int64) (n int, err error) {
	if off < v.size {
		want := p[:min(int64(len(p)), v.size-off)]
		if n, err = v.archive.ReadAt(want, v.base+off); n < len(want) {
			return n, err
		}
	}
	if n < len(p) {
		n += copy(p[n:], v.end[min(off+int64(n)-v.size, int64(len(v.end))):])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}
