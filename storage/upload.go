package storage

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"takt/store"
	"takt/store/seal"
)

// Upload is a file that is arriving. Use: Write or ReadFrom, Finish, Send, and
// inside the transaction Commit; then Settle; Discard on every path. Errors stick:
// after one, only Discard is left.
type Upload struct {
	local     *Local
	to        *Files    // nil if the local disk is all there is
	file      *os.File  // nil after Finish
	out       io.Writer // file, or a sealer before it
	sealer    *seal.Writer
	temporary string // "" once committed or discarded
	limit     int64
	hash      hash.Hash
	size      int64
	flushed   int64 // bytes whose writing to disk was begun
	finished  bool
	digest    [sha256.Size]byte
	sent      *store.File // where it is to be, once that is known
	committed bool
	settled   bool   // a row names it, or may
	takeBack  func() // removes the object
	err       error
}

// Write adds p. It returns a TooLarge error, and writes nothing, if p goes
// over the limit.
func (u *Upload) Write(p []byte) (int, error) {
	if u.err != nil {
		return 0, u.err
	}
	if u.file == nil {
		return 0, fmt.Errorf("writing upload: %w", fs.ErrClosed)
	}
	if u.size+int64(len(p)) > u.limit {
		u.err = store.NewError(store.TooLarge, fmt.Sprintf("File is larger than %d bytes", u.limit))
		return 0, u.err
	}
	n, err := u.writeAndHash(p)
	u.size += int64(n)
	if err != nil {
		u.err = failure("writing upload", err)
		return n, u.err
	}
	u.flushBehind()
	return n, nil
}

// writeAndHash does both at once when p is worth it: they cost about the same,
// and on two cores an upload is a third faster for it. The goroutine never
// outlives the call.
func (u *Upload) writeAndHash(p []byte) (int, error) {
	if len(p) < parallelFrom {
		u.hash.Write(p)
		return u.out.Write(p)
	}
	var hashing sync.WaitGroup
	defer hashing.Wait()
	hashing.Go(func() { u.hash.Write(p) })
	return u.out.Write(p)
}

// ReadFrom adds all of r. It gathers what r gives in small pieces, as a
// multipart part does, so that hash and disk see large ones.
func (u *Upload) ReadFrom(r io.Reader) (int64, error) {
	buf := u.local.buffers.Get().(*[]byte) //nolint:forcetypeassert // the pool holds nothing else
	defer u.local.buffers.Put(buf)
	var total int64
	for {
		n, rerr := fill(r, *buf)
		if n > 0 {
			w, err := u.Write((*buf)[:n])
			total += int64(w)
			if err != nil {
				return total, err
			}
		}
		if errors.Is(rerr, io.EOF) {
			return total, nil
		}
		if rerr != nil {
			return total, fmt.Errorf("reading upload: %w", rerr)
		}
	}
}

// fill is io.ReadFull, but it keeps a source's own ErrUnexpectedEOF apart from
// a source that merely ends.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

// Finish makes the content durable and returns its size and SHA-256.
func (u *Upload) Finish() (size int64, digest [sha256.Size]byte, err error) {
	if u.err == nil && u.file == nil {
		u.err = fmt.Errorf("finishing upload: %w", fs.ErrClosed)
	}
	if u.err != nil {
		return 0, digest, u.err
	}
	if u.sealer != nil {
		err = u.sealer.Close()
	}
	if err == nil {
		err = u.file.Sync()
	}
	err = errors.Join(err, u.file.Close())
	u.file = nil
	if err != nil {
		u.err = failure("finishing upload", err)
		return 0, digest, u.err
	}
	u.finished = true
	u.hash.Sum(u.digest[:0])
	return u.size, u.digest, nil
}

// Commit gives the finished upload its name, replacing what had it, and makes
// that durable. Call it inside the transaction that records the file as Send
// described it.
func (u *Upload) Commit(name string) error {
	if !u.finished || u.temporary == "" {
		return fmt.Errorf("placing upload: %w", fs.ErrClosed)
	}
	if err := checkName(name); err != nil {
		return fmt.Errorf("placing upload: %w", err)
	}
	if u.to != nil && u.to.mode != ModeLocal && (u.sent == nil || u.sent.Name != name) {
		return fmt.Errorf("placing upload: %q was not sent", name)
	}
	u.committed = true
	if u.sent != nil && u.sent.Location == store.InS3 {
		return nil // its name is that of the object, and stands
	}
	return u.rename(name)
}

func checkName(name string) error {
	if !filepath.IsLocal(name) || path.Clean(name) != name || name == "." || strings.Contains(name, `\`) {
		return fmt.Errorf("invalid name %q", name)
	}
	return nil
}

func (u *Upload) rename(name string) error {
	dir := path.Dir(name)
	fresh := false
	if _, err := u.local.root.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		fresh = true
		if err := u.local.root.MkdirAll(dir, 0o700); err != nil {
			return failure("placing upload", err)
		}
	}
	err := u.local.root.Rename(u.temporary, name)
	if errors.Is(err, fs.ErrNotExist) { // somebody thought that the directory was empty for good
		fresh = true
		if err = u.local.root.MkdirAll(dir, 0o700); err == nil {
			err = u.local.root.Rename(u.temporary, name)
		}
	}
	if err != nil {
		return failure("placing upload", err)
	}
	u.temporary = ""
	if err := u.local.syncDir(dir); err != nil {
		return failure("placing upload", err)
	}
	if fresh { // the directory's own entry has to last, too
		if err := u.local.syncDir(path.Dir(dir)); err != nil {
			return failure("placing upload", err)
		}
	}
	return nil
}

// Settle says how the transaction ended that Commit was called in. If it stands,
// or may stand, Discard leaves everything where it is.
func (u *Upload) Settle(err error) {
	u.settled = u.committed && (err == nil || errors.Is(err, store.ErrOutcomeUnknown))
}

// Discard removes what was not committed, and the object that no row names. It may
// be called at any time and more than once; a committed local file stays, because by
// then its name may be another's.
func (u *Upload) Discard() {
	if u.takeBack != nil && !u.settled {
		u.takeBack()
	}
	u.takeBack = nil
	if u.file != nil {
		_ = u.file.Close() // its content is not wanted
		u.file = nil
	}
	if u.temporary != "" {
		// If this fails, SweepTemporary gets it.
		_ = u.local.root.Remove(u.temporary)
		u.temporary = ""
	}
	if u.err == nil {
		u.err = fmt.Errorf("using upload: %w", fs.ErrClosed)
	}
}
