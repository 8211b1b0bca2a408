package main

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

// waitQuiet waits until the speakers send no more requests to the API server. Events follow their cause by minutes.
func (s *simulation) waitQuiet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, scaleLimit)
	defer cancel()

	before := -1.0
	for {
		counts, err := requests(ctx, s.b)
		if err != nil || counts[testbed.Speaker] == before {
			return err
		}

		before = counts[testbed.Speaker]
		err = pause(ctx, calmTime)
		if err != nil {
			return err
		}
	}
}

// rest measures everything while nothing happens.
func (s *simulation) rest(ctx context.Context, got map[string]float64) error {
	err := s.waitRest(ctx)
	if err != nil {
		return err
	}

	s.progress("at rest")
	err = s.measureIdle(ctx, got)
	if err != nil {
		return err
	}

	err = s.measureMemory(ctx, got)
	if err != nil {
		return err
	}

	wait := s.profiles(ctx, "rest", restProfile)
	return wait()
}

// waitRest waits until all effects of changes have ended. It restarts a speaker first: a heap that grew with the
// creation of Services would distort the figure.
func (s *simulation) waitRest(ctx context.Context) error {
	err := s.b.ReplaceSpeaker(ctx, s.speakers[0])
	if err != nil {
		return err
	}

	return errors.Join(
		s.b.Calm(ctx),
		s.fleet.waitCalm(ctx),
		s.waitQuiet(ctx),
		pause(ctx, repeatTime),
	)
}

// measureIdle measures the CPU time and the requests of the daemons at rest.
func (s *simulation) measureIdle(ctx context.Context, got map[string]float64) error {
	requestsBefore, err := requests(ctx, s.b)
	if err != nil {
		return err
	}

	start, err := s.spent()
	if err != nil {
		return err
	}

	startTime := time.Now()
	err = pause(ctx, *scaleRest)
	if err != nil {
		return err
	}

	end, err := s.spent()
	if err != nil {
		return err
	}

	took := time.Since(startTime).Seconds()
	requestsAfter, err := requests(ctx, s.b)
	if err != nil {
		return err
	}

	speakers := float64(len(s.speakers))
	millicores := func(d time.Duration) float64 { return ms(d) / took }
	got["scale_speaker_idle_millicores"] = millicores(end.speakers-start.speakers) / speakers
	got["scale_controller_idle_millicores"] = millicores(end.controller - start.controller)
	s.progress(
		"idle millicores: %.1f of a speaker are not its heartbeat process",
		millicores(end.planning-start.planning)/speakers,
	)

	bySpeakers := requestsAfter[testbed.Speaker] - requestsBefore[testbed.Speaker]
	byController := requestsAfter[testbed.Controller] - requestsBefore[testbed.Controller]
	perSpeaker := bySpeakers / took / speakers
	got["scale_1000_nodes_api_qps"] = perSpeaker*1000 + byController/took
	s.progress(
		"requests in %.0f s without watches: %.0f of %d speakers, %.0f of the controller",
		took,
		bySpeakers,
		len(s.speakers),
		byController,
	)
	return nil
}

// measureMemory measures the memory of a speaker and of the controller, and saves profiles of their heaps.
func (s *simulation) measureMemory(ctx context.Context, got map[string]float64) error {
	speaker, err := findSpeaker(s.b, s.speakers[0])
	if err != nil {
		return err
	}

	controller, err := s.controller()
	if err != nil {
		return err
	}

	for name, d := range map[string]daemon{"speaker": speaker, "controller": controller} {
		m, err := memoryOf(d.all...)
		if err != nil {
			return err
		}

		got["scale_"+name+"_mib"] = m.rss
		s.progress("%s: %.1f MiB, %.1f if what processes share counts once", name, m.rss, m.pss)
		err = profile(ctx, d, name+"-heap.pb.gz", "heap")
		if err != nil {
			return err
		}
	}

	return nil
}
