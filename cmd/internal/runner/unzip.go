package runner

import (
	"archive/zip"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"takt/store"
)

// UnzipLimits bound what an archive may unpack to.
type UnzipLimits struct {
	// Bytes is the maximum size of all files together. Defaults to 8 GiB.
	Bytes int64
	// Files is the maximum number of entries. Defaults to 500 000.
	Files int
	// Links allows symbolic links that stay inside. Without it every link is
	// refused.
	Links bool
}

// Unzipped describes what was unpacked.
type Unzipped struct {
	Files int
	Bytes int64
}

// maxLink is the longest target of a symbolic link, in bytes.
const maxLink = 4096

// Unzip unpacks an archive into an empty directory. It refuses the whole archive
// if an entry would leave the directory, by its name or through a link, is
// neither file, directory nor (if allowed) link, comes twice, or if the limits
// are exceeded; sizes are those of the bytes that come out, not those that the
// archive claims. What was unpacked before an error is left for the caller to
// remove.
func Unzip(ctx context.Context, archive io.ReaderAt, size int64, dir string, limits UnzipLimits) (Unzipped, error) {
	z, err := zip.NewReader(archive, size)
	if errors.Is(err, zip.ErrFormat) {
		return Unzipped{}, errors.New("not a zip archive")
	}
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) { // judged by name below
		return Unzipped{}, fmt.Errorf("reading the zip archive: %w", err)
	}
	// os.Root is a second protection against the same attack.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Unzipped{}, err
	}
	defer root.Close()
	limits.Bytes, limits.Files = cmp.Or(limits.Bytes, 8<<30), cmp.Or(limits.Files, 500_000)
	u := unzip{root: root, limits: limits}
	for _, entry := range z.File {
		if ctx.Err() != nil {
			return Unzipped{}, context.Cause(ctx)
		}
		if err := u.add(ctx, entry); err != nil {
			return Unzipped{}, fmt.Errorf("entry %q: %w", store.Clip(entry.Name, 200), err)
		}
	}
	// Links come last: no entry is written through one.
	if err := u.makeLinks(); err != nil {
		return Unzipped{}, err
	}
	return u.done, nil
}

type unzip struct {
	root   *os.Root
	limits UnzipLimits
	links  []link
	done   Unzipped
}

type link struct{ name, target string }

func (u *unzip) add(ctx context.Context, entry *zip.File) error {
	name, err := entryName(entry.Name)
	if err != nil {
		return err
	}
	u.done.Files++
	if u.done.Files > u.limits.Files {
		return fmt.Errorf("more than %d entries", u.limits.Files)
	}
	mode := entry.Mode()
	switch {
	case mode.IsDir() || strings.HasSuffix(entry.Name, "/"):
		return u.root.MkdirAll(name, 0o755)
	case mode&fs.ModeSymlink != 0 && u.limits.Links:
		target, err := readLink(entry)
		u.links = append(u.links, link{name, target})
		return err
	case !mode.IsRegular():
		return fmt.Errorf("neither file nor directory (%s)", mode)
	}
	return u.file(ctx, name, entry)
}

// entryName checks a name and returns it without a trailing slash.
func entryName(name string) (string, error) {
	clean := strings.TrimSuffix(name, "/")
	switch {
	case strings.ContainsAny(name, "\\\x00"):
		return "", errors.New("name holds a backslash or NUL")
	case clean == "" || strings.HasPrefix(name, "/"):
		return "", errors.New("name is absolute or empty")
	case clean != path.Clean(clean) && "./"+path.Clean(clean) != clean, !fs.ValidPath(path.Clean(clean)):
		return "", errors.New("name leaves the archive or is not plain")
	}
	return path.Clean(clean), nil
}

func (u *unzip) file(ctx context.Context, name string, entry *zip.File) error {
	if err := u.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	perm := fs.FileMode(0o644)
	if entry.Mode()&0o111 != 0 {
		perm = 0o755
	}
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := entry.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	left := u.limits.Bytes - u.done.Bytes
	n, err := io.Copy(f, io.LimitReader(endable{ctx, r}, left+1))
	u.done.Bytes += n
	if n > left {
		return fmt.Errorf("archive unpacks to more than %d bytes", u.limits.Bytes)
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// makeLinks makes all parents before the first link, so that none of them is a
// link itself.
func (u *unzip) makeLinks() error {
	for _, l := range u.links {
		if err := u.root.MkdirAll(path.Dir(l.name), 0o755); err != nil {
			return fmt.Errorf("entry %q: %w", store.Clip(l.name, 200), err)
		}
	}
	for _, l := range u.links {
		if err := u.link(l); err != nil {
			return fmt.Errorf("entry %q: %w", store.Clip(l.name, 200), err)
		}
	}
	return nil
}

// link makes a symbolic link whose target is inside the archive whatever other
// links do: ".." may stand at its beginning only, where the directories are real
// ones, and no more often than the link is deep.
func (u *unzip) link(l link) error {
	depth := strings.Count(l.name, "/")
	parts := strings.Split(l.target, "/")
	for len(parts) > 0 && parts[0] == ".." && depth > 0 {
		parts, depth = parts[1:], depth-1
	}
	for _, part := range parts {
		if part == ".." || strings.ContainsAny(part, "\\\x00") {
			return errors.New("link leaves the archive")
		}
	}
	if l.target == "" || strings.HasPrefix(l.target, "/") {
		return errors.New("link leaves the archive")
	}
	return u.root.Symlink(l.target, l.name)
}

func readLink(entry *zip.File) (string, error) {
	r, err := entry.Open()
	if err != nil {
		return "", err
	}
	defer r.Close()
	target, err := io.ReadAll(io.LimitReader(r, maxLink+1))
	if err == nil && len(target) > maxLink {
		err = errors.New("link too long")
	}
	return string(target), err
}

// endable ends a copy with its context.
type endable struct {
	ctx context.Context //nolint:containedctx // one copy's
	r   io.Reader
}

func (e endable) Read(p []byte) (int, error) {
	if e.ctx.Err() != nil {
		return 0, context.Cause(e.ctx)
	}
	return e.r.Read(p)
}
