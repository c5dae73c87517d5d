package runner

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hostile is an archive of n entries with the same content, in few bytes.
type hostile struct {
	n, name    int // entries, and the length of their names
	content    string
	attributes uint32
	// What the end records say, if it is not the truth.
	entries, length int
	// zip64 is whether the numbers stand in the zip64 record.
	zip64 bool
}

// asLink makes every entry a symbolic link.
const asLink = 0o120777 << 16

func (h hostile) write(t *testing.T, file string) {
	t.Helper()
	var packed bytes.Buffer
	w := must(flate.NewWriter(&packed, flate.BestCompression))(t)
	must(io.WriteString(w, h.content))(t)
	require.NoError(t, w.Close())
	le := binary.LittleEndian
	about := func(out []byte) []byte { // what both headers of an entry have
		out = append(out, 20, 0, 0, 0, 8, 0, 0, 0, 0, 0)
		out = le.AppendUint32(out, crc32.ChecksumIEEE([]byte(h.content)))
		out = le.AppendUint32(out, uint32(packed.Len()))
		out = le.AppendUint32(out, uint32(len(h.content)))
		return append(le.AppendUint16(out, uint16(h.name)), 0, 0)
	}
	var files, all []byte
	for i := range h.n {
		name := fmt.Sprintf("%0*x", h.name, i)
		name = name[len(name)-h.name:]
		at := len(files)
		if h.content != "" || i == 0 { // empty entries share a header: nothing reads it
			files = append(about(append(files, "PK\x03\x04"...)), name...)
			files = append(files, packed.Bytes()...)
		} else {
			at = 0
		}
		all = append(all, headerSignature+"\x14\x03"...) // made by Unix
		all = append(about(all), make([]byte, 6)...)
		all = le.AppendUint32(all, h.attributes)
		all = append(le.AppendUint32(all, uint32(at)), name...)
	}
	entries, length := uint64(h.n), uint64(len(all))
	if h.entries != 0 {
		entries = uint64(h.entries)
	}
	if h.length != 0 {
		length = uint64(h.length)
	}
	v := newView(&directory{}, int64(len(files)), int64(len(files))+int64(length), int(entries))
	end := v.end
	if !h.zip64 {
		end = append([]byte(endSignature), 0, 0, 0, 0)
		end = le.AppendUint16(end, uint16(entries))
		end = le.AppendUint16(end, uint16(entries))
		end = le.AppendUint32(end, uint32(length))
		end = append(le.AppendUint32(end, uint32(len(files))), 0, 0)
	} else {
		le.PutUint64(end[end64Bytes+8:], uint64(len(files)+len(all)))
	}
	require.NoError(t, os.WriteFile(file, bytes.Join([][]byte{files, all, end}, nil), 0o600))
}

// peak unpacks an archive in a process of its own. It returns the process's largest memory in
// bytes, and the error.
func peak(t *testing.T, file string, limits UnzipLimits) (int64, string) {
	t.Helper()
	self := must(os.Executable())(t)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestUnzipInAProcess$", "-test.v")
	cmd.Env = append(os.Environ(), "RUNNER_TEST_ARCHIVE="+file, fmt.Sprintf("RUNNER_TEST_LIMITS=%d %d", limits.Bytes, limits.Files))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	said := regexp.MustCompile(`(?s)VmHWM:\s+(\d+) kB.*unpacked: ([^\n]*)\n`).FindStringSubmatch(string(out))
	require.NotNil(t, said, string(out))
	kilobytes := must(strconv.ParseInt(said[1], 10, 64))(t)
	return kilobytes << 10, said[2]
}

// TestUnzipInAProcess is what peak runs.
func TestUnzipInAProcess(t *testing.T) {
	t.Parallel()
	file := os.Getenv("RUNNER_TEST_ARCHIVE")
	if file == "" {
		return
	}
	limits := UnzipLimits{Links: true}
	must(fmt.Sscan(os.Getenv("RUNNER_TEST_LIMITS"), &limits.Bytes, &limits.Files))(t)
	f := must(os.Open(file))(t)
	defer func() { _ = f.Close() }()
	info := must(f.Stat())(t)
	got, err := Unzip(t.Context(), f, info.Size(), t.TempDir(), limits)
	status, read := os.ReadFile("/proc/self/status")
	require.NoError(t, read)
	fmt.Printf("%s\nunpacked: %v %v\n", status, got, err)
}

// The worker's memory does not grow with what a submitter sends, within the limits or not.
func TestUnzipTakesLittleMemory(t *testing.T) {
	t.Parallel()
	const many, most = 600_000, 50_000
	longLink := strings.Repeat("x", 4095)
	tests := []struct {
		name    string
		archive hostile
		limits  UnzipLimits
		want    string
	}{
		{"long links", hostile{n: 10_000, name: 5, content: longLink, attributes: asLink}, UnzipLimits{}, "{10000 0} <nil>"},
		{"links that are too much", hostile{n: 20_000, name: 5, content: longLink, attributes: asLink}, UnzipLimits{Bytes: 50 << 20}, "archive unpacks to more than 52428800 bytes"},
		{"long names", hostile{n: 150_000, name: 200}, UnzipLimits{Bytes: 4 << 20}, "archive unpacks to more than"},
		{"a directory that says what it is", hostile{n: many, name: 1, zip64: true}, UnzipLimits{Files: most}, "more than 50000 entries"},
		{"a directory that says less", hostile{n: many, name: 1, zip64: true, entries: many & 0xffff}, UnzipLimits{Files: most}, "the directory of the archive is too large for its entries"},
		{"a directory that says less, without zip64", hostile{n: many, name: 1}, UnzipLimits{Files: most}, "the directory of the archive is too large for its entries"},
		{"a directory that says that it is short", hostile{n: many, name: 1, zip64: true, entries: 10, length: 470}, UnzipLimits{Files: most}, "more than 50000 entries"},
		{"a large directory of few entries", hostile{n: 100, name: 60_000}, UnzipLimits{}, "the directory of the archive is too large for its entries"},
		{"a directory that says that it is long", hostile{n: 1, name: 1, zip64: true, length: 1 << 40}, UnzipLimits{}, "the directory of the archive is too large for its entries"},
		{"a directory that says that it has many entries", hostile{n: 1, name: 1, zip64: true, entries: 1 << 40}, UnzipLimits{Files: most}, "more than 50000 entries"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "zip")
			tt.archive.write(t, file)
			took, said := peak(t, file, tt.limits)
			require.Contains(t, said, tt.want)
			t.Logf("%d MiB", took>>20)
			require.Less(t, took, int64(64<<20))
		})
	}
}
