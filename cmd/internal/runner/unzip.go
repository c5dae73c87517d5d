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
)

// UnzipLimits bound what an archive may unpack to.
type UnzipLimits struct {
	// Bytes is the maximum of all together: contents and names of files and links, and
	// entryBytes for each file, link and directory. Defaults to 8 GiB.
	Bytes int64
	// Files is the maximum number of entries. Defaults to 500 000.
	Files int
	// Links allows symbolic links that stay inside. Without it every link is
	// refused.
	Links bool
}

// entryBytes is what a file system takes for a small file, a directory or a long link.
const entryBytes = 4096

// Unzipped describes what was unpacked.
type Unzipped struct {
	Files int
	Bytes int64 // of the files' contents
}

// maxLink is the longest target of a symbolic link, in bytes.
const maxLink = 4096

// Unzip unpacks an archive into an empty directory. It refuses the whole archive
// if an entry would leave the directory, by its name or through a link, is
// neither file, directory nor (if allowed) link, comes twice, or if the limits
// are exceeded; sizes are those of the bytes that come out, not those that the
// archive claims. What was unpacked before an error is left for the caller to
// remove. It takes little memory, however many entries there are.
func Unzip(ctx context.Context, archive io.ReaderAt, size int64, dir string, limits UnzipLimits) (Unzipped, error) {
	limits.Bytes, limits.Files = cmp.Or(limits.Bytes, 8<<30), cmp.Or(limits.Files, 500_000)
	d, err := openDirectory(archive, size, limits.Files)
	if err != nil {
		return Unzipped{}, err
	}
	// os.Root is a second protection against the same attack.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Unzipped{}, err
	}
	defer root.Close()
	u := unzip{root: root, limits: limits}
	err = d.each(ctx, func(entry *zip.File) error { return u.add(ctx, entry) })
	// Links come last: no entry is written through one. All of their parents come before the
	// first one, so that none of these is a link itself. Nothing is remembered of a link.
	if err == nil && u.links {
		err = d.each(ctx, u.onLinks(func(name string, _ *zip.File) error { return u.mkdirAll(path.Dir(name)) }))
	}
	if err == nil && u.links {
		err = d.each(ctx, u.onLinks(u.link))
	}
	if err != nil {
		return Unzipped{}, err
	}
	return u.done, nil
}

type unzip struct {
	root   *os.Root
	limits UnzipLimits
	links  bool  // there are some
	spent  int64 // of limits.Bytes
	done   Unzipped
}

// spend counts n bytes against the limit.
func (u *unzip) spend(n int64) error {
	if u.spent += n; u.spent > u.limits.Bytes {
		return fmt.Errorf("archive unpacks to more than %d bytes, %d for each entry included", u.limits.Bytes, entryBytes)
	}
	return nil
}

func isDir(entry *zip.File) bool { return entry.Mode().IsDir() || strings.HasSuffix(entry.Name, "/") }

func isLink(entry *zip.File) bool { return !isDir(entry) && entry.Mode()&fs.ModeSymlink != 0 }

// add counts an entry, and unpacks it unless it is a link.
func (u *unzip) add(ctx context.Context, entry *zip.File) error {
	name, err := entryName(entry.Name)
	if err != nil {
		return err
	}
	u.done.Files++
	if err := u.spend(int64(len(name))); err != nil {
		return err
	}
	switch {
	case isDir(entry):
		return u.mkdirAll(name)
	case isLink(entry) && u.limits.Links:
		u.links = true
		return u.spend(entryBytes)
	case !entry.Mode().IsRegular():
		return fmt.Errorf("neither file nor directory (%s)", entry.Mode())
	}
	if err := u.spend(entryBytes); err != nil {
		return err
	}
	return u.file(ctx, name, entry)
}

// mkdirAll makes a directory and those above it, and counts what it makes.
func (u *unzip) mkdirAll(name string) error {
	if info, err := u.root.Lstat(name); err == nil && info.IsDir() {
		return nil
	}
	at := u.root
	defer func() {
		if at != u.root {
			_ = at.Close() // nothing is written through it
		}
	}()
	for part := range strings.SplitSeq(name, "/") {
		err := at.Mkdir(part, 0o755)
		if err == nil {
			err = u.spend(entryBytes)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		next, err := at.OpenRoot(part)
		if err != nil {
			return err
		}
		if at != u.root {
			_ = at.Close()
		}
		at = next
	}
	return nil
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
	if err := u.mkdirAll(path.Dir(name)); err != nil {
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
	n, err := io.Copy(f, io.LimitReader(endable{ctx, r}, u.limits.Bytes-u.spent+1))
	u.done.Bytes += n
	if err := cmp.Or(u.spend(n), err); err != nil {
		return err
	}
	return f.Close()
}

// onLinks returns a function that calls f for entries that are links.
func (u *unzip) onLinks(f func(name string, entry *zip.File) error) func(entry *zip.File) error {
	return func(entry *zip.File) error {
		if !isLink(entry) {
			return nil
		}
		name, err := entryName(entry.Name)
		if err != nil {
			return err
		}
		return f(name, entry)
	}
}

// link makes a symbolic link whose target is inside the archive whatever other
// links do: ".." may stand at its beginning only, where the directories are real
// ones, and no more often than the link is deep.
func (u *unzip) link(name string, entry *zip.File) error {
	target, err := readLink(entry)
	if err == nil {
		err = u.spend(int64(len(target)))
	}
	if err != nil {
		return err
	}
	depth := strings.Count(name, "/")
	parts := strings.Split(target, "/")
	for len(parts) > 0 && parts[0] == ".." && depth > 0 {
		parts, depth = parts[1:], depth-1
	}
	for _, part := range parts {
		if part == ".." || strings.ContainsAny(part, "\\\x00") {
			return errors.New("link leaves the archive")
		}
	}
	if target == "" || strings.HasPrefix(target, "/") {
		return errors.New("link leaves the archive")
	}
	return u.root.Symlink(target, name)
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
	ctx context.Context // one copy's
	r   io.Reader
}

func (e endable) Read(p []byte) (int, error) {
	if e.ctx.Err() != nil {
		return 0, context.Cause(e.ctx)
	}
	return e.r.Read(p)
}
