package batching

// Isolate calls do with all items. If do refuses them, Isolate calls it with each half, in
// order, and so on down to single items, so that a faulty item is refused alone and the
// others are done. For each item refused alone it calls alone, whose error counts as do's.
//
// refused reports whether an error of do means that nothing of the part was done and that
// one of its items may be the reason. Isolate stops at any other error and returns it;
// parts before it are done, those after it were not tried. Of n items, one faulty item
// costs at most 1 + 2 log2(n) calls, rounded up.
func Isolate[T any](items []T, refused func(error) bool, do func(part []T) error, alone func(item T, cause error) error) error {
	err := do(items)
	switch {
	case err == nil || !refused(err):
		return err
	case len(items) == 1:
		return alone(items[0], err)
	}
	half := len(items) / 2
	if err := Isolate(items[:half], refused, do, alone); err != nil {
		return err
	}
	return Isolate(items[half:], refused, do, alone)
}
