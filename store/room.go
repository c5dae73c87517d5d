package store

import (
	"strconv"
	"time"
)

// The values of QueueRoom.Reason.
const (
	RoomFull      = "full"
	RoomUnmatched = "unmatched"
)

// QueueRoom is how many builds wait, and how many may.
type QueueRoom struct {
	// Limit is the queue limit. It lets one build more in, as it always did.
	Limit int
	// Pending counts all builds that wait. Unmatched are those of them with requirements that no
	// known worker meets; none while no worker is known, because the first may still come.
	Pending, Unmatched int
}

// Share returns how many unmatched builds may wait beside the others: a tenth of the limit, at
// least one.
func (r QueueRoom) Share() int { return max(r.Limit/10, 1) }

// Full reports whether every submit is refused. Unmatched builds don't count, up to their share, so
// builds that can never start don't keep others out, and no more than the limit, one and the share
// wait in all.
func (r QueueRoom) Full() bool { return r.Pending-min(r.Unmatched, r.Share()) > r.Limit }

// ShareFull reports whether submits of further unmatched builds are refused.
func (r QueueRoom) ShareFull() bool { return r.Unmatched >= r.Share() }

// Admit counts one more build in and returns nil, or QueueFull if there is no room for it. When the
// queue is full that is so for all builds, so that it is known before a body is read.
func (r *QueueRoom) Admit(unmatched bool) error {
	switch {
	case r.Full():
		return r.refusal(r.fullText())
	case unmatched && r.ShareFull():
		return r.refusal("No known worker can take this build. " + r.shareText())
	}
	r.Pending++
	if unmatched {
		r.Unmatched++
	}
	return nil
}

// refusal returns the answer to a submitter. Old clients compare all of it but the details.
func (QueueRoom) refusal(details string) error {
	return &Error{Code: QueueFull, Message: "Build queue full, try again later", Details: details, RetryAfter: 5 * time.Second}
}

// Reason returns RoomFull if all submits are refused, RoomUnmatched if only those of unmatched builds
// are, "" if none is.
func (r QueueRoom) Reason() string {
	switch {
	case r.Full():
		return RoomFull
	case r.ShareFull():
		return RoomUnmatched
	}
	return ""
}

// Refused says which submits are refused, and why; "" if none is.
func (r QueueRoom) Refused() string {
	switch r.Reason() {
	case RoomFull:
		return "All submits are refused. " + r.fullText()
	case RoomUnmatched:
		return "Submits of builds that no known worker can take are refused. " + r.shareText()
	}
	return ""
}

func (r QueueRoom) fullText() string {
	text := "The queue's limit is " + strconv.Itoa(r.Limit) + ", and " + strconv.Itoa(r.Pending) + " builds wait."
	if r.Unmatched > 0 {
		text += " No known worker can take " + strconv.Itoa(r.Unmatched) + " of them; up to " + strconv.Itoa(r.Share()) + " such builds don't count."
	}
	return text
}

func (r QueueRoom) shareText() string {
	return "The limit of such builds is " + strconv.Itoa(r.Share()) + ", and " + strconv.Itoa(r.Unmatched) + " wait. " +
		"The limit of all others is " + strconv.Itoa(r.Limit) + ", and " + strconv.Itoa(r.Pending-r.Unmatched) + " wait."
}

// Unmatched reports whether no known worker can take the builds, and they have requirements. A
// platform alone is none: its first worker may still come.
func (s *FleetSummary) Unmatched() bool { return len(s.Class.Require) > 0 && s.Known == 0 }
