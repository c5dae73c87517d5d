package certs

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

const (
	// MaxBytes is the most bytes that all entries of an archive may have together
	// when unpacked.
	MaxBytes = 12 << 20
	// maxEntries is the most entries that an archive may have.
	maxEntries = 10_000
)

// Bundle is what an archive holds.
type Bundle struct {
	// P12 is the last entry whose name ends in .p12.
	P12 []byte
	// Password is the content of the entry password.txt, without surrounding space;
	// "" if there is no such entry.
	Password string
	// Profiles are all entries whose names end in .mobileprovision, in the order
	// of the archive.
	Profiles [][]byte
}

// Unpack reads a zip archive of size bytes that has at most limit bytes when
// unpacked. Errors say what is wrong with the archive, but never show its content.
func Unpack(r io.ReaderAt, size, limit int64) (Bundle, error) {
	archive, err := zip.NewReader(r, size)
	if err != nil {
		return Bundle{}, fmt.Errorf("certs archive: %w", err)
	}
	if len(archive.File) > maxEntries {
		return Bundle{}, fmt.Errorf("certs archive: more than %d entries", maxEntries)
	}
	if err := check(archive.File, uint64(max(limit, 0))); err != nil {
		return Bundle{}, fmt.Errorf("certs archive: %w", err)
	}
	b := Bundle{Profiles: [][]byte{}}
	for i, f := range archive.File {
		if !wanted(f) {
			continue
		}
		content, err := read(f)
		if err != nil {
			return Bundle{}, fmt.Errorf("certs archive: entry %d: %w", i, err)
		}
		switch {
		case f.Name == passwordName:
			b.Password = strings.TrimSpace(strings.ToValidUTF8(string(content), "\uFFFD"))
		case strings.HasSuffix(f.Name, p12Suffix):
			b.P12 = content
		default:
			b.Profiles = append(b.Profiles, content)
		}
	}
	if b.P12 == nil {
		return Bundle{}, errors.New("certs archive: no .p12 file")
	}
	return b, nil
}

const (
	passwordName  = "password.txt"
	p12Suffix     = ".p12"
	profileSuffix = ".mobileprovision"
)

// check refuses an archive because of what its directory says.
func check(files []*zip.File, limit uint64) error {
	var sum uint64
	for i, f := range files {
		if !safe(f.Name) {
			return fmt.Errorf("entry %d: its name leads out of the archive", i)
		}
		if mode := f.Mode(); !mode.IsRegular() && !mode.IsDir() {
			return fmt.Errorf("entry %d: neither a file nor a directory", i)
		}
		if f.UncompressedSize64 > limit || sum+f.UncompressedSize64 > limit {
			return errTooLarge
		}
		sum += f.UncompressedSize64
	}
	return nil
}

var errTooLarge = errors.New("unpacks to more than it may")

// safe reports whether name stays inside the directory that it is unpacked into, on
// any operating system.
func safe(name string) bool {
	return name != "" && name[0] != '/' && !strings.Contains(name, "..") && !strings.ContainsAny(name, "\\\x00")
}

// wanted reports whether an entry is read. It skips the metadata files that macOS
// adds, because they have the same endings.
func wanted(f *zip.File) bool {
	if !f.Mode().IsRegular() || strings.HasPrefix(f.Name, "__MACOSX/") || strings.HasPrefix(path.Base(f.Name), "._") {
		return false
	}
	return f.Name == passwordName || strings.HasSuffix(f.Name, p12Suffix) || strings.HasSuffix(f.Name, profileSuffix)
}

// read unpacks an entry. check has bounded its size, and the reader fails if there is
// more than that.
func read(f *zip.File) ([]byte, error) {
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	content := bytes.NewBuffer(make([]byte, 0, f.UncompressedSize64+bytes.MinRead))
	_, err = content.ReadFrom(r)
	return content.Bytes(), err
}
