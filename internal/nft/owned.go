package nft

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Image is what a table is to hold, as a value.
type Image[I any] interface {
	comparable
	// Permanent is the layout. For an image of another layout the table is replaced.
	Permanent() *Layout
	// From returns the change from an older image of this layout; from an empty table if there is none.
	From(old I) Change
}

// Config is what an Owned needs. Its functions are called under the lock.
type Config[I Image[I]] struct {
	Log *slog.Logger
	Table
	// Image makes what the table is to hold, given what it holds, if that is known. The zero image means no table.
	Image func(old I) I
	// Seen is called with what the kernel's table holds, before Image is asked what it should hold; it may be nil.
	Seen func(*Content)
	// Done is called when the table holds an image; it may be nil.
	Done func(I)
	// Changed is called when the table fails or works again; it may be nil.
	Changed func()
	// AuditInterval is the time between two comparisons of the table's whole content with the image, if no other
	// program changes it; by default ten minutes.
	AuditInterval time.Duration
}

// retryInterval is the first wait after the kernel has refused a transaction, and the shortest between two comparisons.
const retryInterval = 100 * time.Millisecond

// Owned is a table that one process keeps: Apply makes it hold an image, and Run repairs what others change. There is
// one kind of damage: the table does not hold the image. There is one repair, which is also what happens to the table
// of a predecessor that holds anything else: one transaction replaces the whole table. An Owned guards what the
// functions of its Config use.
type Owned[I Image[I]] struct {
	sync.Mutex
	Config[I]
	repairs atomic.Uint64
	// wake wakes Run.
	wake lb.Signal

	// none is the zero image.
	none I
	conn Conn
	// Transact sends a transaction to the kernel.
	Transact func(*Batch) error
	// on: Apply was called, and Remove was not. read: what a predecessor left was compared.
	on, read bool
	// actual is the known content of the table; the zero image while it is unknown, or absent: there is no table.
	actual I
	absent bool
	// generation increases with every attempt to change the table.
	generation uint64
	// enforced: the table holds the image, and since when that is so, or is not. failure is why not, of the last
	// attempt.
	enforced bool
	since    time.Time
	failure  error
	// retryAt is when the kernel is asked again for what it refused, and wait the time between the last two attempts.
	retryAt time.Time
	wait    time.Duration
}

// NewOwned returns an Owned. It does not access the kernel.
func NewOwned[I Image[I]](c Config[I]) *Owned[I] {
	c.AuditInterval = cmp.Or(c.AuditInterval, 10*time.Minute)
	o := &Owned[I]{Config: c, wake: lb.NewSignal(), since: time.Now()}
	o.Transact = o.conn.Commit
	return o
}

// Apply makes the table hold the image, which is the same as at the last Apply or not. On an error it holds what it
// held, and Run retries.
func (o *Owned[I]) Apply(same bool) error {
	if same && o.on && (o.failure != nil || o.absent || o.actual != o.none) {
		return o.failure
	}
	o.on, o.wait = true, 0 // the kernel may take this one
	return o.apply()
}

// maxWait is the longest time until the kernel is asked again for what it refused. Each attempt may take as long as the
// whole table.
const maxWait = 5 * time.Minute

func (o *Owned[I]) apply() error {
	failed := o.failure != nil
	o.generation++
	if o.failure = o.put(); o.failure != nil {
		o.failure = fmt.Errorf("set table %s: %w", o.Name, o.failure)
		o.wait = min(max(2*o.wait, retryInterval), maxWait)
		o.retryAt = time.Now().Add(o.wait)
		o.wake.Kick()
	}

	works := o.failure == nil
	if works != o.enforced {
		o.enforced, o.since = works, time.Now()
	} else if works != failed {
		return o.failure
	}

	if works {
		o.Log.Info("table in force", "table", o.Name)
	} else {
		o.Log.Error("the kernel refuses the table", "table", o.Name, "error", o.failure)
	}

	if o.Changed != nil {
		o.Changed()
	}

	return o.failure
}

// put makes the kernel's table hold the image.
func (o *Owned[I]) put() error {
	want := o.Image(o.actual)
	if want == o.none {
		return o.clear()
	}

	if o.actual != o.none && o.actual.Permanent().signature == want.Permanent().signature {
		if o.change(want) == nil {
			return nil
		}

		o.actual = o.none // the table differs from it
	}

	if !o.read {
		o.read = true
		found, err := want.Permanent().Read()
		if want, err = o.compare(want, found, err); err == nil {
			return nil
		}

		if !errors.Is(err, os.ErrNotExist) {
			o.Log.Info("table is replaced", "table", o.Name, "reason", err)
		}
	}

	return o.replace(want)
}

// compare takes over the table, given what it holds, and returns the image. The error is why it is not as the image has
// it.
func (o *Owned[I]) compare(want I, found *Content, err error) (I, error) {
	if err != nil {
		return want, err
	}

	if o.Seen != nil {
		o.Seen(found)
		want = o.Image(o.actual)
	}

	if !found.holds(want.Permanent(), want.From(o.none)) {
		return want, ErrOther
	}

	o.record(want)
	return want, nil
}

// record notes what the table holds.
func (o *Owned[I]) record(img I) {
	if o.actual, o.absent = img, false; o.Done != nil {
		o.Done(img)
	}
}

// change changes the table from what it holds to an image.
func (o *Owned[I]) change(want I) error {
	if c := want.From(o.actual); !c.empty() {
		b := want.Permanent().Batch()
		c.write(b, want.Permanent())
		if err := o.Transact(b); err != nil {
			return err
		}

		o.Log.Debug("table changed", "table", o.Name, "added", len(c.Add), "removed", len(c.Remove))
	}

	o.record(want)
	return nil
}

// replace replaces the table in one transaction, so that packets see the old or the new table. It keeps base chains and
// interval sets, and exchanges their rules and elements: the kernel calls a new base chain ahead of the old one, and
// during the commit a packet between the two would meet the rules of neither. The elements of a new interval set become
// visible a little later than the rules that use it.
func (o *Owned[I]) replace(want I) (err error) {
	o.actual = o.none
	layout, whole := want.Permanent(), want.From(o.none)
	for _, inPlace := range []bool{true, false} {
		b := layout.Batch()
		if !inPlace {
			b.Remove()
		}

		b.Create(0)
		if inPlace && !layout.clear(b) {
			continue
		}

		layout.Build(b)
		whole.write(b, layout)
		if err = o.Transact(b); err == nil {
			o.record(want)
			return nil
		}
	}

	return err
}

// clear deletes the content of the existing table. It keeps the wanted base chains and the interval sets, but not
// their rules and elements. It returns false if the table cannot be listed.
func (l *Layout) clear(b *Batch) bool {
	found, err := l.Outline()
	if err != nil {
		return false
	}

	b.Flush()
	for _, name := range found.Sets {
		if l.Set(name).Intervals() {
			b.FlushSet(name)
		} else {
			b.DeleteSet(name)
		}
	}

	for name := range found.Chains {
		if !slices.ContainsFunc(l.Chains, func(c Chain) bool { return c.Name == name && c.Kind != "" }) {
			b.DeleteChain(name)
		}
	}

	return true
}

// clear deletes the table.
func (o *Owned[I]) clear() error {
	if o.absent {
		return nil
	}

	b := o.Batch()
	b.Remove()
	err := o.Transact(b)
	o.actual, o.absent = o.none, err == nil
	return err
}

// Remove deletes the table. A concurrent Run does not restore it.
func (o *Owned[I]) Remove() error {
	o.Lock()
	defer o.Unlock()
	o.absent = false
	err := o.clear()
	o.on, o.absent, o.failure, o.enforced, o.since = false, false, nil, false, time.Now()
	if err = errors.Join(err, o.conn.Close()); err != nil {
		return fmt.Errorf("remove table %s: %w", o.Name, err)
	}

	return nil
}

// Enforced reports whether the table holds the image of the last Apply, and the time of the last change of this.
func (o *Owned[I]) Enforced() (ok bool, since time.Time) { return o.enforced, o.since }

// InForce is Enforced for who does not hold the lock.
func (o *Owned[I]) InForce() bool {
	o.Lock()
	defer o.Unlock()
	return o.enforced
}

// Failure is why the table does not hold the image of the last Apply.
func (o *Owned[I]) Failure() error {
	o.Lock()
	defer o.Unlock()
	return o.failure
}

// Actual returns what the table is known to hold.
func (o *Owned[I]) Actual() I {
	o.Lock()
	defer o.Unlock()
	return o.actual
}

// Repairs counts the repairs of what others changed.
func (o *Owned[I]) Repairs() uint64 { return o.repairs.Load() }
