package settings

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"takt/storage"
	"takt/store/seal"
)

// UsesS3 reports whether a bucket is configured, even if it is only read from.
func (c *Config) UsesS3() bool { return c.Storage != string(storage.ModeLocal) || c.S3.Endpoint != "" }

func (c *Config) validateStorage() []error {
	if !storage.Mode(c.Storage).Valid() {
		// In the original, --storage names a directory.
		if strings.ContainsAny(c.Storage, `./`) {
			return []error{fmt.Errorf("storage: want local, s3 or dual, not %q; the directory of the files is data-dir", c.Storage)}
		}
		return []error{fmt.Errorf("storage: %q is not known: local, s3 or dual", c.Storage)}
	}
	if !c.UsesS3() {
		return nil
	}
	if err := c.S3.Validate(); err != nil {
		return []error{err}
	}
	return nil
}

// OpenFiles opens the storage of builds' files. It sends no request to S3.
func OpenFiles(cfg Config, keys *seal.Ring) (*storage.Files, error) {
	local, err := storage.OpenLocal(filepath.Join(cfg.DataDir, "files"), keys)
	if err != nil {
		return nil, err
	}
	var s3 *storage.S3
	if cfg.UsesS3() {
		if s3, err = storage.OpenS3(cfg.S3); err != nil {
			return nil, errors.Join(err, local.Close())
		}
	}
	return storage.NewFiles(storage.Mode(cfg.Storage), local, s3)
}
