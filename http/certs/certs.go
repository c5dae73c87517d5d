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
	// MaxBytes is what all entries of an archive may have together, unpacked.
	MaxBytes = 12 << 20
	// maxEntries is the most entries that an archive may have.
	maxEntries = 10_000
)

// Bundle is what an archive holds.
type Bundle struct {
	// P12 is the last entry whose name ends in .p12.
	P12 []byte
	// Password is the entry password.txt, without space around it; "" if there is
	// none.
	Password string
	// Profiles are all entries whose names end in .mobileprovision, in the order
	// of the archive.
	Profiles [][]byte
}

// Unpack reads a zip archive of size bytes that has at most limit bytes when
// unpacked. Errors say what is wrong with it, but never show what is in it.
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
	b, budget := Bundle{Profiles: [][]byte{}}, limit
	for i, f := range archive.File {
		if !wanted(f) {
			continue
		}
		content, err := read(f, &budget)
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

// check refuses an archive for what its directory says.
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

// safe reports whether name stays inside whatever it is unpacked into, on any
// system.
func safe(name string) bool {
	return name != "" && name[0] != '/' && !strings.Contains(name, "..") && !strings.ContainsAny(name, "\\\x00")
}

// wanted reports whether an entry is read. The files that macOS writes beside
// others have the same endings, and are none of them.
func wanted(f *zip.File) bool {
	if !f.Mode().IsRegular() || strings.HasPrefix(f.Name, "__MACOSX/") || strings.HasPrefix(path.Base(f.Name), "._") {
		return false
	}
	return f.Name == passwordName || strings.HasSuffix(f.Name, p12Suffix) || strings.HasSuffix(f.Name, profileSuffix)
}

// read unpacks an entry and takes its bytes from budget, whatever the archive
// says that it has.
func read(f *zip.File, budget *int64) ([]byte, error) {
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	content := bytes.NewBuffer(make([]byte, 0, f.UncompressedSize64+bytes.MinRead)) // check has bounded it
	if _, err := content.ReadFrom(io.LimitReader(r, *budget+1)); err != nil {
		return nil, err
	}
	if *budget -= int64(content.Len()); *budget < 0 {
		return nil, errTooLarge
	}
	return content.Bytes(), nil
}
