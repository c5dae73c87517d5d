//go:build dev

package dashboard

import (
	"fmt"
	"os"
	"sync"
)

// devFiles has the files of the look, for a process that runs in takt's sources: see make dev.
const devFiles = "http/dashboard"

// devLook is the last look without a fault.
var devLook struct {
	sync.Mutex
	*look
	fault string
}

// current reads the look anew, so that a change of a file shows at once. While a file is wrong, it
// returns the look before, and says once on standard error what is wrong.
func current() *look {
	l := &devLook
	l.Lock()
	defer l.Unlock()
	func() {
		defer func() {
			fault := ""
			if wrong := recover(); wrong != nil {
				fault = fmt.Sprint(wrong)
			}
			if fault != l.fault {
				fmt.Fprintln(os.Stderr, "pages:", fault)
			}
			l.fault = fault
		}()
		l.look = newLook(os.DirFS(devFiles))
	}()
	return l.look
}

// changed reports whether the look is no longer the one of that version.
func changed(version string) bool { return current().version != version }
