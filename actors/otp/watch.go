package otp

// Watch calls f with the reason once the process has ended: at once if it has
// already. It is for those who are no processes themselves and so can't
// [Ctx.Monitor]: f runs in the goroutine in which the process ends, after its
// name is free, and must be quick. cancel takes it back; f may be running.
func (p *Proc) Watch(f func(reason error)) (cancel func()) { return p.watch(f) }
