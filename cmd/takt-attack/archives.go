package main

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"strings"
)

// linksArchive returns a zip of symbolic links with long targets, which compress well.
func linksArchive(n int) []byte {
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	target := []byte(strings.Repeat("a/", 2047) + "a")
	for i := range n {
		h := &zip.FileHeader{Name: fmt.Sprintf("l%d", i), Method: zip.Deflate}
		h.SetMode(fs.ModeSymlink | 0o777)
		w, _ := z.CreateHeader(h)
		_, _ = w.Write(target) // memory does not fail
	}
	_ = z.Close()
	return out.Bytes()
}

// directoryArchive returns a zip without files, whose directory has n entries of 47 bytes, the
// shortest that there are. Package zip writes none like that.
func directoryArchive(n int) []byte {
	entry := make([]byte, 47)
	binary.LittleEndian.PutUint32(entry, 0x02014b50)
	binary.LittleEndian.PutUint16(entry[28:], 1) // the length of its name
	entry[46] = 'x'
	size := uint64(n * len(entry))
	out := bytes.NewBuffer(bytes.Repeat(entry, n))
	le := func(values ...any) {
		for _, v := range values {
			_ = binary.Write(out, binary.LittleEndian, v) // memory does not fail
		}
	}
	// The end of a directory with more than 65 535 entries (zip64), where that end is, and the
	// usual end, which says that the numbers are elsewhere.
	le(uint32(0x06064b50), uint64(44), uint16(45), uint16(45), uint32(0), uint32(0), uint64(n), uint64(n), size, uint64(0))
	le(uint32(0x07064b50), uint32(0), size, uint32(1))
	le(uint32(0x06054b50), uint16(0), uint16(0), uint16(0xffff), uint16(0xffff), uint32(0xffffffff), uint32(0xffffffff), uint16(0))
	return out.Bytes()
}
