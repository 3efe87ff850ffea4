// Made by `make web-types` from the OpenAPI document d18f4d90f43f5d07.

export interface paths {
    "/livez": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Whether the process answers */
        get: operations["live"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/readyz": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Whether the store answers, and which durability holds
         * @description 503 while the store does not answer, and once the server is shutting down.
         */
        get: operations["ready"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/errors/{code}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** What an error means: where `type` of a problem points */
        get: operations["explainError"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/metrics": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Counters, histograms and gauges, as Prometheus reads them */
        get: operations["metrics"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/count": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Count runs */
        get: operations["countRuns"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/summary": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Facets, a histogram of starts, and groups of failures of the runs that a query finds
         * @description Of the newest 10,000 matches; `complete` says whether these are all.
         */
        get: operations["summariseRuns"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/failures": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The failed runs that a query finds, grouped by how they failed */
        get: operations["groupFailures"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/resolve/{text}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * The id of a run by a unique prefix, or by @last
         * @description A text that several ids begin with is refused.
         */
        get: operations["resolveRun"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/usage": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Runs, node-seconds, events, bytes and tokens by day and workflow */
        get: operations["getUsage"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Find runs */
        get: operations["findRuns"];
        put?: never;
        /**
         * Start a run
         * @description With an `Idempotency-Key`, the same request returns the same run with 200, another one is refused.
         */
        post: operations["startRun"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/batch": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Start up to 1,000 runs of a workflow
         * @description All inputs are checked first; if one is refused, no run is started.
         */
        post: operations["startRuns"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show a run */
        get: operations["getRun"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/result": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Wait for the end of a run
         * @description 200 with the run once it has ended; 202 with the run as it is when the time is up.
         */
        get: operations["getRunResult"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/events": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the events of a run, all or those that meet conditions */
        get: operations["getRunEvents"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/path": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The path a run took */
        get: operations["getRunPath"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/tokens": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** What is in flight in a run */
        get: operations["getRunTokens"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/why": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** What a run is waiting for, or why it failed */
        get: operations["explainRun"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/why/{node}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** How the visits of a node ended, or what it is waiting for */
        get: operations["explainNode"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/logs": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * What handlers printed and logged
         * @description The latest lines in order of time: of the run, of a node, or of one visit, item or attempt of it.
         */
        get: operations["getRunLogs"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/document": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The document that a run follows, with its patches */
        get: operations["getRunDocument"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/nodes/{node}/transcript": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The transcript of an agent: turns, tool calls, tokens and cost */
        get: operations["getTranscript"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/compare/{other_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Two runs side by side */
        get: operations["compareRuns"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/stream": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Follow a run (Server-Sent Events)
         * @description Every event of the run, with its seq as `id`; `Last-Event-ID` or `after` resumes after it. Without an id: `live` (parts, progress) and `log`. The last frame is `end`, or `resume` with the id to continue from.
         */
        get: operations["streamRun"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/stream": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Follow the changes of all runs (Server-Sent Events)
         * @description `{change, run}` for each run that has started, changed or ended, within a second or so. `reset` says that changes were missed: read the list again.
         */
        get: operations["streamRuns"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/nodes/{node}/output": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * The output of a node
         * @description Whole up to 64 KiB, else its beginning. With `Range`, bytes of the JSON text (206).
         */
        get: operations["getNodeOutput"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/nodes/{node}/input": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * What a node was given: its config with the values in it, without secrets; of a map, its list
         * @description No value before the first attempt. Whole up to 64 KiB, else its beginning. With `Range`, bytes of the JSON text (206).
         */
        get: operations["getNodeInput"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/nodes/{node}/items": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The items of the latest visit of a map, with their statuses */
        get: operations["getNodeItems"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/graph": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The graph of a run with statuses and taken edges, as JSON or as a drawing */
        get: operations["getRunGraph"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/timeline": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * When the nodes of a run were queued, at work, waiting and backing off
         * @description `after` is what made a track ready, `last` what led to the end: node, visit and item.
         */
        get: operations["getRunTimeline"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/cancel": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Cancel a run */
        post: operations["cancelRun"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/pause": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Pause a run: start no new nodes */
        post: operations["pauseRun"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/resume": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Resume a paused run */
        post: operations["resumeRun"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/retry": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Retry a failed or cancelled run; completed nodes keep their results */
        post: operations["retryRun"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/rewind": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Run a node and everything downstream of it again */
        post: operations["rewindRun"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/override": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Settle a node manually
         * @description Deciding on behalf of people who were asked needs `approvals:decide`.
         */
        post: operations["overrideNode"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/rollback": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Run the compensators of a run, in reverse order */
        post: operations["rollBackRun"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/rehearse": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * What an action would do to a run now; nothing changes
         * @description Refused as the action would be, except for unknown outcomes, which it names.
         */
        post: operations["rehearseAction"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/signal": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Send a signal to a run */
        post: operations["signalRun"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/relabel": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Change the labels of a run */
        post: operations["relabelRun"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/fork": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Fork a run: start a new one with its history
         * @description With an `Idempotency-Key`, a repetition returns the same fork with 200. Other inputs or another graph after a decision of people, only with `approvals:decide`.
         */
        post: operations["forkRun"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/{run_id}/patch": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Change the graph or the configuration of a run
         * @description 409 with `moved` if the run has moved on since `base_digest` or `expected_seq`. Of a run in which people have decided, only with `approvals:decide`.
         */
        post: operations["patchRun"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/runs/bulk": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Apply one action to all runs that a query finds, or to named runs */
        post: operations["actOnRuns"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/workflows/validate": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Check a document without publishing it
         * @description Every problem is reported at once, with line and column. The answer is 200 also for a document with problems.
         */
        post: operations["validateWorkflow"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/workflows": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List published workflows, most recently changed first */
        get: operations["listWorkflows"];
        put?: never;
        /**
         * Publish a document as the newest version of its workflow
         * @description Content that is a version already is not published again: the answer is 201 too, with `created` false.
         */
        post: operations["publishWorkflow"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/workflows/{reference}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show a version, by number or tag, with the tags of its workflow */
        get: operations["showWorkflow"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/workflows/{reference}/document": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The document of a version, in its normal form, as JSON or YAML */
        get: operations["workflowDocument"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/workflows/{reference}/graph": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The graph of a version, as JSON */
        get: operations["workflowGraph"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/workflows/{reference}/graph.svg": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The graph of a version, as a picture */
        get: operations["workflowPicture"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/workflows/{name}/versions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The versions of a workflow, oldest first */
        get: operations["workflowVersions"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/workflows/{reference}/diff": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The differences between two versions, as a JSON Patch and as a difference of graphs */
        get: operations["diffWorkflows"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/workflows/{reference}/patch": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Publish a new version with a JSON Patch of another one */
        post: operations["patchWorkflow"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/workflows/{name}/tags": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Where the tags of a workflow point */
        get: operations["workflowTags"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/workflows/{name}/tag-history": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Where the tags of a workflow have pointed, oldest first */
        get: operations["workflowTagHistory"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/workflows/{name}/tags/{tag}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        /**
         * Point a tag to a version, or let several versions share it
         * @description With a `weight` the version gets that percentage of the runs that are started by the tag.
         */
        put: operations["moveTag"];
        post?: never;
        /** Remove a tag; its history stays */
        delete: operations["removeTag"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/workflows/{name}/tags/{tag}/rollback": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Move a tag back to where it pointed before */
        post: operations["rollbackTag"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/workflows/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /** Delete a workflow from the catalog; refused while runs of it have not ended */
        delete: operations["deleteWorkflow"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/approvals": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List approvals, newest first; pending ones by default
         * @description A page may have fewer items than the limit while there is a next one.
         */
        get: operations["listApprovals"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/approvals/{approval_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show what is decided, the evidence, and the consequences of each decision */
        get: operations["showApproval"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/approvals/{approval_id}/votes": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Who has agreed, and who has decided */
        get: operations["approvalVotes"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/approvals/{approval_id}/history": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** What happened to an approval, oldest first */
        get: operations["approvalHistory"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/approvals/{approval_id}/decide": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Approve, reject, or request changes
         * @description Repeating the same decision returns the same response, a different one 409, a late one 410.
         */
        post: operations["decideApproval"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/approvals/{approval_id}/request-changes": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Request changes, where the node has a path for them */
        post: operations["requestChanges"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/approvals/{approval_id}/delegate": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Delegate the caller's decision to another person */
        post: operations["delegateApproval"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/approvals/{approval_id}/links": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Create a link by which one person can decide without a key
         * @description The link is valid for this request, this person and this time; a decision uses it up.
         */
        post: operations["createDecisionLink"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/decisions/{token}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show the approval of a link; nothing is decided by it
         * @description A browser that opens it is sent to the page that shows it.
         */
        get: operations["showDecisionLink"];
        put?: never;
        /**
         * Decide as the person of a link
         * @description Repeating the same decision returns the same response; any other is refused with 409, because the link is used up.
         */
        post: operations["decideByLink"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/dead-letters": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List dead letters, newest first */
        get: operations["listDeadLetters"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/dead-letters/{dead_letter_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show a dead letter with the input that the node was given */
        get: operations["showDeadLetter"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/dead-letters/{dead_letter_id}/discard": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Close a dead letter without retrying it */
        post: operations["discardDeadLetter"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/dead-letters/reprocess": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Retry the runs of open dead letters
         * @description A patch or a corrected config changes the graph of the runs, which also takes the permission `runs:patch`.
         */
        post: operations["reprocessDeadLetters"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/blobs": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List blobs by their digests */
        get: operations["listBlobs"];
        put?: never;
        /**
         * Store bytes, and get the description that may be an input of a run
         * @description Without `keep` the bytes are collected after a day or so, unless a run or workflow refers to them by then.
         */
        post: operations["putBlob"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/blobs/{digest}/info": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The size and state of a blob */
        get: operations["blobInfo"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/blobs/{digest}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * The bytes of a blob, or a range of them
         * @description Bytes that do not match the digest end the answer early; a range that starts after the first byte is not checked. Browsers save the bytes and never run them: they are an attachment, of the type that the caller names.
         */
        get: operations["getBlob"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/workers": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List workers, most recently started first
         * @description A tenant other than the operator's does not see where workers run, what they hold and what they lack.
         */
        get: operations["listWorkers"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/queues": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * The work of the tenant by queue, and how old the oldest is
         * @description As it was within the last second.
         */
        get: operations["listQueues"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/node-types": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the node types of the server and of workers */
        get: operations["listNodeTypes"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/node-types/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show a node type: its fields and capabilities
         * @description By name, in its newest version, or as `name@2`.
         */
        get: operations["showNodeType"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/concurrency": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List concurrency limits
         * @description A tenant other than the operator's sees the limits of queues and node types.
         */
        get: operations["listConcurrencyLimits"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/concurrency/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        /** Limit how many nodes of a queue, type, workflow or label value run at once */
        put: operations["setConcurrencyLimit"];
        post?: never;
        /** Remove a limit */
        delete: operations["removeConcurrencyLimit"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/tools": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List composite tools, most recently changed first */
        get: operations["listTools"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/tools/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show a composite tool: its parameters and its steps
         * @description By name, in its newest version, or as `name@2`.
         */
        get: operations["showTool"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        /**
         * Rename, pin or retire a composite tool
         * @description One after the other, each with an entry of its own in the audit: what was changed before a refusal stays.
         */
        patch: operations["changeTool"];
        trace?: never;
    };
    "/api/v1/schedules": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List schedules, newest first */
        get: operations["listSchedules"];
        put?: never;
        /** Create a schedule */
        post: operations["createSchedule"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/schedules/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show a schedule and its next five times */
        get: operations["showSchedule"];
        put?: never;
        post?: never;
        /** Delete a schedule */
        delete: operations["deleteSchedule"];
        options?: never;
        head?: never;
        /** Change a schedule */
        patch: operations["changeSchedule"];
        trace?: never;
    };
    "/api/v1/schedules/{name}/times": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The next times at which it is due */
        get: operations["scheduleTimes"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/schedules/{name}/pause": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Pause a schedule */
        post: operations["pauseSchedule"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/schedules/{name}/resume": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Resume after a pause */
        post: operations["resumeSchedule"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/schedules/{name}/trigger": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Start a run
         * @description Start a run of the schedule now. The same `Idempotency-Key` returns the same run.
         */
        post: operations["triggerSchedule"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/me": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The caller, and what it may do */
        get: operations["me"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/session": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Exchange a key or token for a session
         * @description Sets a cookie that scripts cannot read and other sites cannot send; the answer has its CSRF token.
         */
        post: operations["beginSession"];
        /**
         * End the session of a browser
         * @description Every server refuses the cookie within five seconds, also a copy of it.
         */
        delete: operations["endSession"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/keys": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The API keys of the tenant */
        get: operations["listKeys"];
        put?: never;
        /**
         * Create an API key
         * @description The answer is the only place where the key is ever shown.
         */
        post: operations["createKey"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/keys/{key_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /**
         * Revoke an API key
         * @description Every server refuses the key within five seconds. Revoking it again changes nothing.
         */
        delete: operations["revokeKey"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/tenants": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The tenants that were created */
        get: operations["listTenants"];
        put?: never;
        /** Create a tenant */
        post: operations["createTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/tenants/{name}/disable": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Disable a tenant
         * @description All its keys and tokens are refused within five seconds; its runs continue.
         */
        post: operations["disableTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/tenants/{name}/enable": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Enable a tenant again */
        post: operations["enableTenant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/audit": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Who changed what, newest first */
        get: operations["listAudit"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/audit/verify": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Check whether an audit entry was changed */
        get: operations["verifyAudit"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
}
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /**
         * Act
         * @example {
         *       "reason": "asked for by the customer"
         *     }
         */
        Act: {
            /**
             * Reason
             * @description The reason, recorded with the run.
             * @default
             */
            reason: string;
            /**
             * Command Id
             * @description Your own request id: repeating the request with it changes nothing.
             */
            command_id?: string | null;
        };
        /** BatchItem */
        BatchItem: {
            /** Inputs */
            inputs?: unknown;
            /**
             * Key
             * @description An idempotency key for this run.
             */
            key?: string | null;
        };
        /**
         * BulkRequest
         * @example {
         *       "action": "retry",
         *       "dry_run": true,
         *       "query": "status:failed workflow:billing"
         *     }
         */
        BulkRequest: {
            /**
             * Action
             * @enum {string}
             */
            action: "cancel" | "pause" | "resume" | "retry" | "rollback";
            /**
             * Query
             * @description A query, such as `status:failed workflow:billing`.
             * @default
             */
            query: string;
            /**
             * Run Ids
             * @description Instead of `query`: the runs by their ids.
             * @default []
             */
            run_ids: string[];
            /**
             * Limit
             * @description Maximum number of runs to act on, newest first.
             * @default 1000
             */
            limit: number;
            /**
             * Dry Run
             * @description Only report which runs match, and which would refuse.
             * @default false
             */
            dry_run: boolean;
            /**
             * Reason
             * @default
             */
            reason: string;
        };
        /**
         * CancelRun
         * @example {
         *       "reason": "asked for by the customer"
         *     }
         */
        CancelRun: {
            /**
             * Reason
             * @description The reason, recorded with the run.
             * @default
             */
            reason: string;
            /**
             * Command Id
             * @description Your own request id: repeating the request with it changes nothing.
             */
            command_id?: string | null;
            /**
             * Compensate
             * @description Run the compensators; by default as the document says.
             */
            compensate?: boolean | null;
            /**
             * Force
             * @description Also stop a rollback in progress.
             * @default false
             */
            force: boolean;
        };
        /** ChangesBody */
        ChangesBody: {
            /**
             * Comments
             * @description What has to change.
             * @example the amount is wrong
             */
            comments: string;
            /**
             * Form
             * @description The data of the approval's form, as far as filled in.
             */
            form?: unknown;
            /**
             * Command Id
             * @description Identifies repetitions of one request.
             */
            command_id?: string | null;
        };
        /** DecideBody */
        DecideBody: {
            /**
             * Decision
             * @description `changes` asks for changes, where the node has a path for it.
             * @enum {string}
             */
            decision: "approve" | "reject" | "changes";
            /**
             * Comments
             * @description Recorded in the log.
             * @default
             * @example looks right
             */
            comments: string;
            /**
             * Form
             * @description The data of the approval's form, checked against its schema.
             */
            form?: unknown;
            /**
             * Command Id
             * @description Identifies repetitions of one request.
             */
            command_id?: string | null;
        };
        /** DelegateBody */
        DelegateBody: {
            /**
             * To
             * @description The person who decides instead.
             * @example user:bob
             */
            to: string;
            /**
             * Comments
             * @default
             */
            comments: string;
            /**
             * Command Id
             * @description Identifies repetitions of one request.
             */
            command_id?: string | null;
        };
        /** DiscardBody */
        DiscardBody: {
            /**
             * Reason
             * @description Why it is discarded.
             * @default
             * @example handled by hand
             */
            reason: string;
            /**
             * Command Id
             * @description Makes a repetition of the request harmless.
             */
            command_id?: string | null;
        };
        /**
         * ForkRun
         * @example {
         *       "node": "score",
         *       "reason": "what if"
         *     }
         */
        ForkRun: {
            /**
             * At
             * @description The last event to copy; by default all.
             */
            at?: number | null;
            /**
             * Node
             * @description A node that runs again in the fork.
             */
            node?: string | null;
            /**
             * Inputs
             * @description Inputs in place of those of the same name; the others are those of the run.
             */
            inputs?: unknown;
            /**
             * Patch
             * @description A JSON Patch of the run's document. Needs `runs:patch`.
             */
            patch?: unknown;
            /**
             * Document
             * @description Instead of `patch`: the new document, also as YAML.
             */
            document?: {
                [key: string]: unknown;
            } | string | null;
            /**
             * Labels
             * @description By default those of the run.
             */
            labels?: {
                [key: string]: string;
            } | null;
            /**
             * Reason
             * @default
             */
            reason: string;
        };
        /** HTTPValidationError */
        HTTPValidationError: {
            /** Detail */
            detail?: components["schemas"]["ValidationError"][];
        };
        /** LimitBody */
        LimitBody: {
            /**
             * Limit
             * @description Nodes that run at a time in the whole fleet.
             * @example 4
             */
            limit: number;
        };
        /** LinkBody */
        LinkBody: {
            /**
             * Person
             * @description Who decides by the link; default: the caller. Links for others need the permission `keys:write`.
             * @example user:alice
             */
            person?: string | null;
            /**
             * Expires In Seconds
             * @description The link expires with the approval at the latest.
             * @default 86400
             */
            expires_in_seconds: number;
        };
        /** MoveTagBody */
        MoveTagBody: {
            /**
             * Version
             * @description The version the tag points to.
             * @example 3
             */
            version?: number | null;
            /**
             * Weight
             * @description Give `version` only this percentage of the runs; the versions of the tag share the rest.
             */
            weight?: number | null;
            /**
             * Weights
             * @description Instead of `version`: all versions that share the tag, and their percentages.
             * @example {
             *       "2": 90,
             *       "3": 10
             *     }
             */
            weights?: {
                [key: string]: number;
            } | null;
            /**
             * Message
             * @description Why it is moved.
             * @default
             */
            message: string;
        };
        /** NewKeyBody */
        NewKeyBody: {
            /**
             * Label
             * @description What the key is for. Changes made with the key are recorded as by `key:LABEL`.
             * @example ci-deploy
             */
            label: string;
            /**
             * Roles
             * @example [
             *       "author",
             *       "operator"
             *     ]
             */
            roles: ("viewer" | "operator" | "author" | "approver" | "admin")[];
            /**
             * Expires Days
             * @description How long the key is valid; null: until it is revoked.
             * @default 365
             * @example 90
             */
            expires_days: number | null;
        };
        /**
         * NewSchedule
         * @description A schedule to create, with `cron` or `every`.
         * @example {
         *       "cron": "0 2 * * *",
         *       "name": "nightly",
         *       "timezone": "Europe/Berlin",
         *       "workflow": "report:stable"
         *     }
         */
        NewSchedule: {
            /**
             * Workflow
             * @description name, name@3 or name:stable
             */
            workflow: string;
            /**
             * Cron
             * @description five fields, or @hourly, @daily, @weekly, @monthly, @yearly
             * @example 0 2 * * *
             */
            cron?: string | null;
            /**
             * Every
             * @description an interval: 30s, 15m, 1h30m, or seconds
             */
            every?: string | number | null;
            /**
             * Timezone
             * @description an IANA time zone
             * @default UTC
             */
            timezone: string;
            /** Inputs */
            inputs?: unknown;
            /**
             * Labels
             * @default {}
             */
            labels: {
                [key: string]: string;
            };
            /**
             * Start At
             * @description ISO 8601; without a zone in that of the schedule
             */
            start_at?: string | null;
            /** End At */
            end_at?: string | null;
            /** Jitter */
            jitter?: string | number | null;
            /**
             * Catch Up
             * @default skip
             * @enum {string}
             */
            catch_up: "skip" | "all" | "none";
            /**
             * Overlap
             * @default allow
             * @enum {string}
             */
            overlap: "allow" | "skip";
            /**
             * Description
             * @default
             */
            description: string;
            /** Name */
            name: string;
            /**
             * Paused
             * @default false
             */
            paused: boolean;
        };
        /** NewTenantBody */
        NewTenantBody: {
            /**
             * Name
             * @description Lower-case letters, digits and -, at most 63.
             * @example acme
             */
            name: string;
        };
        /**
         * OverrideNode
         * @example {
         *       "node": "charge",
         *       "value": {
         *         "paid": true
         *       }
         *     }
         */
        OverrideNode: {
            /**
             * Reason
             * @description The reason, recorded with the run.
             * @default
             */
            reason: string;
            /**
             * Command Id
             * @description Your own request id: repeating the request with it changes nothing.
             */
            command_id?: string | null;
            /** Node */
            node: string;
            /**
             * Value
             * @description The output of the node; null is a value too.
             */
            value?: unknown;
            /**
             * Skip
             * @description Skip the node instead of giving it a value.
             * @default false
             */
            skip: boolean;
            /**
             * Visit
             * @description Of a loop; by default the latest.
             */
            visit?: number | null;
            /**
             * Index
             * @description An item of a map.
             */
            index?: number | null;
            /**
             * Next Nodes
             * @description The nodes to continue with; by default the branch decides.
             */
            next_nodes?: string[] | null;
        };
        /**
         * PatchRun
         * @example {
         *       "message": "the service has moved",
         *       "operations": [
         *         {
         *           "op": "replace",
         *           "path": "/nodes/0/config/url",
         *           "value": "https://example.org"
         *         }
         *       ],
         *       "retry": true
         *     }
         */
        PatchRun: {
            /**
             * Operations
             * @description A JSON Patch of the run's document (`GET /runs/{run_id}/document`).
             */
            operations?: unknown;
            /**
             * Document
             * @description Instead of `operations`: the new document, also as YAML.
             */
            document?: {
                [key: string]: unknown;
            } | string | null;
            /**
             * Dry Run
             * @description Only report what the patch would do.
             * @default false
             */
            dry_run: boolean;
            /**
             * Retry
             * @description Let a failed or cancelled run continue with it.
             * @default false
             */
            retry: boolean;
            /**
             * Base Digest
             * @description Refuse if the run's document has changed since.
             */
            base_digest?: string | null;
            /**
             * Expected Seq
             * @description Refuse if the run has moved past this event.
             */
            expected_seq?: number | null;
            /**
             * Publish
             * @description Also publish the result as a new version.
             * @default false
             */
            publish: boolean;
            /**
             * Did Not Happen
             * @description Nodes with an unknown outcome that did not happen.
             * @default []
             */
            did_not_happen: string[];
            /**
             * Message
             * @description A message, recorded with the patch.
             * @default
             */
            message: string;
            /** Command Id */
            command_id?: string | null;
        };
        /** PatchWorkflowBody */
        PatchWorkflowBody: {
            /**
             * Operations
             * @description A JSON Patch (RFC 6902) of the document in its normal form.
             * @example [
             *       {
             *         "op": "replace",
             *         "path": "/nodes/greet/config",
             *         "value": "Good morning"
             *       }
             *     ]
             */
            operations: {
                [key: string]: unknown;
            }[];
            /**
             * Base Digest
             * @description Refuse the patch unless the version has this digest.
             */
            base_digest?: string | null;
            /**
             * Message
             * @description Why it is changed.
             * @default
             */
            message: string;
        };
        /** ReasonBody */
        ReasonBody: {
            /**
             * Message
             * @description Why.
             * @default
             * @example 3 fails on empty orders
             */
            message: string;
        };
        /**
         * Rehearse
         * @example {
         *       "action": "rewind",
         *       "node": "fetch"
         *     }
         */
        Rehearse: {
            /**
             * Action
             * @enum {string}
             */
            action: "cancel" | "override" | "pause" | "resume" | "retry" | "rewind" | "rollback";
            /**
             * Node
             * @description Of a rewind or an override.
             * @default
             */
            node: string;
            /** Visit */
            visit?: number | null;
            /** Index */
            index?: number | null;
            /**
             * Skip
             * @description An override that skips the node.
             * @default false
             */
            skip: boolean;
            /** Next Nodes */
            next_nodes?: string[] | null;
            /** Compensate */
            compensate?: boolean | null;
            /**
             * Force
             * @default false
             */
            force: boolean;
            /**
             * Did Not Happen
             * @description Nodes with an unknown outcome that did not happen.
             * @default []
             */
            did_not_happen: string[];
        };
        /**
         * RelabelRun
         * @example {
         *       "remove": [
         *         "draft"
         *       ],
         *       "set": {
         *         "team": "b"
         *       }
         *     }
         */
        RelabelRun: {
            /**
             * Set
             * @description Labels to add or to change.
             * @default {}
             */
            set: {
                [key: string]: string;
            };
            /**
             * Remove
             * @description Labels to remove.
             * @default []
             */
            remove: string[];
            /** Command Id */
            command_id?: string | null;
        };
        /** ReprocessBody */
        ReprocessBody: {
            /**
             * Run Id
             * @description Only dead letters of this run.
             */
            run_id?: string | null;
            /**
             * Node
             * @description Only dead letters of this node.
             */
            node?: string | null;
            /**
             * Workflow
             * @description Only dead letters of this workflow.
             * @example billing
             */
            workflow?: string | null;
            /**
             * Code
             * @description Only dead letters with this error code.
             * @example http_status
             */
            code?: string | null;
            /**
             * Operations
             * @description A JSON Patch for the document of each run.
             */
            operations?: {
                [key: string]: unknown;
            }[] | null;
            /**
             * Config
             * @description A corrected config for `node`.
             */
            config?: unknown;
            /**
             * Did Not Happen
             * @description Nodes whose effect is known not to have happened.
             * @default []
             */
            did_not_happen: string[];
            /**
             * Dry Run
             * @description Only count.
             * @default false
             */
            dry_run: boolean;
            /**
             * Reason
             * @default
             */
            reason: string;
            /**
             * Limit
             * @description Stop after this many dead letters.
             * @default 1000
             */
            limit: number;
        };
        /**
         * RetryRun
         * @example {
         *       "reason": "asked for by the customer"
         *     }
         */
        RetryRun: {
            /**
             * Reason
             * @description The reason, recorded with the run.
             * @default
             */
            reason: string;
            /**
             * Command Id
             * @description Your own request id: repeating the request with it changes nothing.
             */
            command_id?: string | null;
            /**
             * Did Not Happen
             * @description Nodes with an unknown outcome that did not happen.
             * @default []
             */
            did_not_happen: string[];
        };
        /**
         * RewindRun
         * @example {
         *       "node": "fetch",
         *       "reason": "the source was wrong"
         *     }
         */
        RewindRun: {
            /**
             * Reason
             * @description The reason, recorded with the run.
             * @default
             */
            reason: string;
            /**
             * Command Id
             * @description Your own request id: repeating the request with it changes nothing.
             */
            command_id?: string | null;
            /**
             * Did Not Happen
             * @description Nodes with an unknown outcome that did not happen.
             * @default []
             */
            did_not_happen: string[];
            /**
             * Node
             * @description The node to run again, with everything downstream of it.
             */
            node: string;
        };
        /**
         * ScheduleChange
         * @description What can be changed of a schedule; what is left out stays.
         */
        ScheduleChange: {
            /**
             * Workflow
             * @description name, name@3 or name:stable
             * @default
             */
            workflow: string;
            /**
             * Cron
             * @description five fields, or @hourly, @daily, @weekly, @monthly, @yearly
             * @example 0 2 * * *
             */
            cron?: string | null;
            /**
             * Every
             * @description an interval: 30s, 15m, 1h30m, or seconds
             */
            every?: string | number | null;
            /**
             * Timezone
             * @description an IANA time zone
             * @default UTC
             */
            timezone: string;
            /** Inputs */
            inputs?: unknown;
            /**
             * Labels
             * @default {}
             */
            labels: {
                [key: string]: string;
            };
            /**
             * Start At
             * @description ISO 8601; without a zone in that of the schedule
             */
            start_at?: string | null;
            /** End At */
            end_at?: string | null;
            /** Jitter */
            jitter?: string | number | null;
            /**
             * Catch Up
             * @default skip
             * @enum {string}
             */
            catch_up: "skip" | "all" | "none";
            /**
             * Overlap
             * @default allow
             * @enum {string}
             */
            overlap: "allow" | "skip";
            /**
             * Description
             * @default
             */
            description: string;
        };
        /**
         * SendSignal
         * @example {
         *       "name": "paid",
         *       "payload": {
         *         "amount": 12
         *       }
         *     }
         */
        SendSignal: {
            /**
             * Name
             * @description The name of the signal.
             */
            name: string;
            /** Payload */
            payload?: unknown;
            /**
             * Signal Id
             * @description A second signal with the same id changes nothing.
             */
            signal_id?: string | null;
        };
        /**
         * StartBatch
         * @example {
         *       "runs": [
         *         {
         *           "inputs": {
         *             "n": 1
         *           },
         *           "key": "order-1"
         *         }
         *       ],
         *       "workflow": "billing"
         *     }
         */
        StartBatch: {
            /**
             * Workflow
             * @description `name` (the newest version), `name@3` or `name:tag`.
             */
            workflow: string;
            /**
             * Labels
             * @description Labels to find the runs by.
             * @default {}
             */
            labels: {
                [key: string]: string;
            };
            /**
             * Deadline Seconds
             * @description The run fails if it has not ended after this time.
             */
            deadline_seconds?: number | null;
            /**
             * Correlation Id
             * @description Your own id, stored with the run.
             * @default
             */
            correlation_id: string;
            /** Runs */
            runs: components["schemas"]["BatchItem"][];
            /**
             * Dry Run
             * @description Only check the inputs; nothing starts, and `runs` is empty.
             * @default false
             */
            dry_run: boolean;
        };
        /**
         * StartRun
         * @example {
         *       "inputs": {
         *         "n": 3
         *       },
         *       "labels": {
         *         "team": "a"
         *       },
         *       "workflow": "billing:stable"
         *     }
         */
        StartRun: {
            /**
             * Workflow
             * @description `name` (the newest version), `name@3` or `name:tag`.
             */
            workflow?: string | null;
            /**
             * Labels
             * @description Labels to find the runs by.
             * @default {}
             */
            labels: {
                [key: string]: string;
            };
            /**
             * Deadline Seconds
             * @description The run fails if it has not ended after this time.
             */
            deadline_seconds?: number | null;
            /**
             * Correlation Id
             * @description Your own id, stored with the run.
             * @default
             */
            correlation_id: string;
            /**
             * Document
             * @description Instead of `workflow`: a document, which is published first. Needs `runs:patch`.
             */
            document?: {
                [key: string]: unknown;
            } | string | null;
            /**
             * Inputs
             * @description The inputs of the run.
             */
            inputs?: unknown;
        };
        /** ToolBody */
        ToolBody: {
            /**
             * Name
             * @description Its new name.
             * @example cheapest-flights
             */
            name?: string | null;
            /**
             * Description
             * @description The description that agents read.
             */
            description?: string | null;
            /**
             * Pinned
             * @description Whether it is pinned to its version.
             */
            pinned?: boolean | null;
            /**
             * Retired
             * @description Whether agents can no longer find and call it.
             */
            retired?: boolean | null;
        };
        /** ValidationError */
        ValidationError: {
            /** Location */
            loc: (string | number)[];
            /** Message */
            msg: string;
            /** Error Type */
            type: string;
            /** Input */
            input?: unknown;
            /** Context */
            ctx?: Record<string, never>;
        };
        /** Why */
        Why: {
            /**
             * Reason
             * @default
             * @example the end of the quarter
             */
            reason: string;
        };
        RunCount: {
            count: number;
        };
        RunSummary: {
            counted: number;
            complete: boolean;
            facets: components["schemas"]["RunFacets"];
            histogram: components["schemas"]["RunHistogram"];
            failures: components["schemas"]["FailureGroups"];
        };
        /** @description How many of the matches have which value. */
        RunFacets: {
            counted: number;
            complete: boolean;
            status: {
                [key: string]: number;
            };
            workflow: {
                [key: string]: number;
            };
            version: {
                [key: string]: number;
            };
            labels: {
                [key: string]: {
                    [key: string]: number;
                };
            };
        };
        /** @description When the matches were started. */
        RunHistogram: {
            counted: number;
            complete: boolean;
            buckets: components["schemas"]["HistogramBucket"][];
        };
        HistogramBucket: {
            since_ms: number;
            until_ms: number;
            count: number;
            status: {
                [key: string]: number;
            };
        };
        /** @description The failures among the matches, the most frequent first. */
        FailureGroups: {
            counted: number;
            complete: boolean;
            groups: components["schemas"]["FailureGroup"][];
        };
        /** @description Runs that failed in the same way. */
        FailureGroup: {
            failure: string;
            count: number;
            code: string;
            node: string;
            workflow: string;
            message: string;
            example: string;
            first_ms: number;
            last_ms: number;
        };
        ResolvedRun: {
            run_id: string;
        };
        UsageReport: {
            rows: components["schemas"]["UsageRow"][];
            complete: boolean;
        };
        /** @description What the runs of one workflow took that ended on one day, in UTC. */
        UsageRow: {
            day: string;
            workflow: string;
            runs: number;
            node_ms: number;
            events: number;
            bytes: number;
            tokens: number;
            model_calls: number;
            model_tokens: number;
            cached_tokens: number;
            model_cost: number;
        };
        StartedRun: {
            run_id: string;
            created: boolean;
        };
        StartedBatch: {
            runs: components["schemas"]["StartedRun"][];
        };
        /** @description A run as lists show it. Stored by position, like events: new fields are appended with a default. */
        RunRow: {
            run_id: string;
            workflow: string;
            version: number;
            digest: string;
            status: string;
            created_ms: number;
            last_event_ms: number;
            counter: number;
            events: number;
            tag_used: string;
            submitted_by: string;
            labels: {
                [key: string]: string;
            };
            correlation_id: string;
            started_ms: number | null;
            ended_ms: number | null;
            tolerated: number;
            dead_letters: number;
            late_results: number;
            waiting_for: string[];
            parent: string;
            forked_from: string;
            stuck: boolean;
            idle: boolean;
            failed_node: string;
            error_code: string;
            rollback: string;
            revision: number;
            suspect: string;
            stuck_reason: string;
            failure: string;
            error_message: string;
            work_ms: number;
            output_bytes: number;
            tokens: number;
            model_calls: number;
            model_tokens: number;
            cached_tokens: number;
            model_cost: number;
        };
        RunView: {
            run_id?: string;
            workflow?: string;
            submitted_by?: string;
            stuck?: string;
            outputs_missing?: string;
            version?: number;
            revision?: number;
            counter?: number;
            events?: number;
            created_ms?: number;
            last_event_ms?: number;
            /** @enum {string} */
            status?: "RUNNING" | "PAUSED" | "COMPLETED" | "FAILED" | "CANCELLED";
            inputs?: unknown;
            outputs?: unknown;
            error?: Record<string, never> | null;
            rollback?: Record<string, never>;
            failed_node?: string | null;
            waiting_for?: string[];
            ended_ms?: number | null;
            labels?: {
                [key: string]: string;
            };
            parent?: string | null;
            forked_from?: unknown[] | null;
            nodes?: {
                [key: string]: Record<string, never>;
            };
            spent?: {
                [key: string]: number;
            };
            warnings?: string[];
            outputs_declared?: boolean;
        };
        Explanation: {
            /** @enum {unknown} */
            status: "NEW" | "RUNNING" | "PAUSED" | "COMPLETED" | "FAILED" | "CANCELLED";
            headline: string;
            stuck: string;
            newer: string;
            since_ms: number | null;
            blockers: (components["schemas"]["Edge"] | components["schemas"]["Join"] | components["schemas"]["Limit"] | components["schemas"]["Items"] | components["schemas"]["Worker"] | components["schemas"]["Lease"] | components["schemas"]["Retry"] | components["schemas"]["Timer"] | components["schemas"]["Person"] | components["schemas"]["Signal"] | components["schemas"]["Child"] | components["schemas"]["Loop"] | components["schemas"]["Pause"] | components["schemas"]["Outputs"] | components["schemas"]["Wait"] | components["schemas"]["Missing"] | components["schemas"]["Deadline"] | components["schemas"]["Rollback"])[];
            counts: {
                [key: string]: number;
            };
            more_roots: number;
            more_followers: number;
            deadline: components["schemas"]["Deadline"] | null;
            first_cause: components["schemas"]["Cause"] | null;
            chain: components["schemas"]["Link"][];
            reason: string;
            failures_tolerated: number;
            tolerated: components["schemas"]["Sample"];
            unread: {
                [key: string]: number;
            };
            dead_letters: number;
            /** @enum {unknown} */
            rollback: "none" | "running" | "done" | "partial";
            left: components["schemas"]["Sample"];
            left_error: components["schemas"]["Failure"] | null;
            warnings: string[];
            unblock: string;
            command: string;
        };
        /** @description Its only inbound edge is undecided. */
        Edge: {
            node: string;
            visit: number;
            index: number;
            status: string;
            since_ms: number | null;
            until_ms: number | null;
            root: boolean;
            words: string;
            unblock: string;
            command: string;
            undecided: components["schemas"]["Undecided"][];
            origins: components["schemas"]["Origin"][];
            more_origins: boolean;
            /** @constant */
            kind: "edge";
        };
        /** @description An inbound edge that is neither taken nor dead. */
        Undecided: {
            source: string;
            status: string;
            loop: string;
        };
        /** @description A live node at the upper end of undecided edges. */
        Origin: {
            node: string;
            visit: number;
            status: string;
            kind: string;
        };
        /** @description Several edges lead to it, and the decided ones do not settle its join. */
        Join: {
            node: string;
            visit: number;
            index: number;
            status: string;
            since_ms: number | null;
            until_ms: number | null;
            root: boolean;
            words: string;
            unblock: string;
            command: string;
            join: string;
            arrived: number;
            dead: number;
            of: number;
            needed: number;
            undecided: components["schemas"]["Undecided"][];
            origins: components["schemas"]["Origin"][];
            more_origins: boolean;
            /** @constant */
            kind: "join";
        };
        /** @description It is ready, but `max_parallel` holds it back. */
        Limit: {
            node: string;
            visit: number;
            index: number;
            status: string;
            since_ms: number | null;
            until_ms: number | null;
            root: boolean;
            words: string;
            unblock: string;
            command: string;
            position: number;
            max_parallel: number | null;
            in_flight: number;
            /** @constant */
            kind: "limit";
        };
        /** @description A map waits for its items, the first of which are listed as blockers of their own. */
        Items: {
            node: string;
            visit: number;
            index: number;
            status: string;
            since_ms: number | null;
            until_ms: number | null;
            root: boolean;
            words: string;
            unblock: string;
            command: string;
            count: number;
            done: number;
            failed: number;
            queued: number;
            running: number;
            waiting: number;
            unqueued: number;
            window: number;
            listed: number;
            broken: components["schemas"]["BrokenItem"][];
            /** @constant */
            kind: "items";
        };
        BrokenItem: {
            index: number;
            attempts: number;
            error: components["schemas"]["Failure"] | null;
        };
        /** @description An error, without what only the engine needs of it. */
        Failure: {
            code: string;
            message: string;
            type: string;
            hint: string;
            causes: string[];
            traceback: string;
        };
        Worker: {
            node: string;
            visit: number;
            index: number;
            status: string;
            since_ms: number | null;
            until_ms: number | null;
            root: boolean;
            words: string;
            unblock: string;
            command: string;
            queue: string;
            type: string;
            /** @enum {unknown} */
            need: "no_worker" | "silent" | "no_queue" | "no_type" | "lacking" | "value" | "later" | "lost" | "busy" | "killer" | "limited";
            lost: string;
            alive: string[];
            able_elsewhere: string[];
            lacking: components["schemas"]["Failure"] | null;
            /** @constant */
            kind: "worker";
        };
        /** @description A worker holds the job; `until_ms` is when its lease ends unless it is renewed. */
        Lease: {
            node: string;
            visit: number;
            index: number;
            status: string;
            since_ms: number | null;
            until_ms: number | null;
            root: boolean;
            words: string;
            unblock: string;
            command: string;
            owner: string;
            phase: string;
            attempt: number;
            tries: number;
            max_attempts: number;
            timeout_at_ms: number | null;
            silent_since_ms: number | null;
            /** @constant */
            kind: "lease";
        };
        /** @description An attempt failed and the next begins at `until_ms`. */
        Retry: {
            node: string;
            visit: number;
            index: number;
            status: string;
            since_ms: number | null;
            until_ms: number | null;
            root: boolean;
            words: string;
            unblock: string;
            command: string;
            attempt: number;
            tries: number;
            max_attempts: number;
            error: components["schemas"]["Failure"] | null;
            /** @constant */
            kind: "retry";
        };
        /** @description It sleeps. With `expires` its time-out comes first. */
        Timer: {
            node: string;
            visit: number;
            index: number;
            status: string;
            since_ms: number | null;
            until_ms: number | null;
            root: boolean;
            words: string;
            unblock: string;
            command: string;
            wakes_ms: number | null;
            expires: boolean;
            /** @constant */
            kind: "timer";
        };
        Person: {
            node: string;
            visit: number;
            index: number;
            status: string;
            since_ms: number | null;
            until_ms: number | null;
            root: boolean;
            words: string;
            unblock: string;
            command: string;
            title: string;
            approvers: string[];
            barred: string[];
            quorum: number;
            voted: string[];
            delegated: unknown[][];
            escalated: boolean;
            on_timeout: string;
            escalate_to: string[];
            url: string;
            /** @constant */
            kind: "person";
        };
        Signal: {
            node: string;
            visit: number;
            index: number;
            status: string;
            since_ms: number | null;
            until_ms: number | null;
            root: boolean;
            words: string;
            unblock: string;
            command: string;
            name: string;
            /** @constant */
            kind: "signal";
        };
        Child: {
            node: string;
            visit: number;
            index: number;
            status: string;
            since_ms: number | null;
            until_ms: number | null;
            root: boolean;
            words: string;
            unblock: string;
            command: string;
            child: string;
            started: boolean;
            need: ("no_worker" | "silent" | "no_queue" | "no_type" | "lacking" | "value" | "later" | "lost" | "busy" | "killer" | "limited") | "";
            /** @constant */
            kind: "child";
        };
        /** @description A looping node has its result and waits for the rest of its body before the next pass. */
        Loop: {
            node: string;
            visit: number;
            index: number;
            status: string;
            since_ms: number | null;
            until_ms: number | null;
            root: boolean;
            words: string;
            unblock: string;
            command: string;
            body: string[];
            body_count: number;
            /** @constant */
            kind: "loop";
        };
        /** @description The run is paused; with a node: the visit would be dispatched otherwise. */
        Pause: {
            node: string;
            visit: number;
            index: number;
            status: string;
            since_ms: number | null;
            until_ms: number | null;
            root: boolean;
            words: string;
            unblock: string;
            command: string;
            reason: string;
            /** @constant */
            kind: "pause";
        };
        /** @description Every visit has ended; the run's outputs are being rendered. */
        Outputs: {
            node: string;
            visit: number;
            index: number;
            status: string;
            since_ms: number | null;
            until_ms: number | null;
            root: boolean;
            words: string;
            unblock: string;
            command: string;
            owner: string;
            need: ("no_worker" | "silent" | "no_queue" | "no_type" | "lacking" | "value" | "later" | "lost" | "busy" | "killer" | "limited") | "";
            /** @constant */
            kind: "outputs";
        };
        /** @description A handler waits for something of its own, in the handler's words. */
        Wait: {
            node: string;
            visit: number;
            index: number;
            status: string;
            since_ms: number | null;
            until_ms: number | null;
            root: boolean;
            words: string;
            unblock: string;
            command: string;
            on: string;
            name: string;
            expires_ms: number | null;
            /** @constant */
            kind: "wait";
        };
        /** @description The state needs a job that the store does not have. */
        Missing: {
            node: string;
            visit: number;
            index: number;
            status: string;
            since_ms: number | null;
            until_ms: number | null;
            root: boolean;
            words: string;
            unblock: string;
            command: string;
            job: string;
            /** @constant */
            kind: "missing";
        };
        /** @description The run fails at `until_ms`, whatever it waits for then. */
        Deadline: {
            node: string;
            visit: number;
            index: number;
            status: string;
            since_ms: number | null;
            until_ms: number | null;
            root: boolean;
            words: string;
            unblock: string;
            command: string;
            /** @constant */
            kind: "deadline";
        };
        /** @description Completed steps are being compensated, one after the other. */
        Rollback: {
            node: string;
            visit: number;
            index: number;
            status: string;
            since_ms: number | null;
            until_ms: number | null;
            root: boolean;
            words: string;
            unblock: string;
            command: string;
            step: number;
            steps: number;
            compensator: string;
            attempt: number;
            max_attempts: number;
            owner: string;
            need: ("no_worker" | "silent" | "no_queue" | "no_type" | "lacking" | "value" | "later" | "lost" | "busy" | "killer" | "limited") | ("" | "retry" | "missing");
            error: components["schemas"]["Failure"] | null;
            left: string[];
            left_count: number;
            /** @constant */
            kind: "rollback";
        };
        /** @description Where a failed run failed first. No node: its deadline or its outputs failed. */
        Cause: {
            node: string;
            visit: number;
            index: number;
            attempts: number;
            at_ms: number | null;
            error: components["schemas"]["Failure"];
        };
        Link: {
            /** @enum {unknown} */
            what: "cause" | "item" | "node" | "run" | "failed_with" | "cancelled";
            words: string;
            nodes: components["schemas"]["Sample"];
        };
        Sample: {
            count: number;
            names: string[];
        };
        NodeHistory: {
            node: string;
            status: string;
            headline: string;
            visits: components["schemas"]["PathStep"][];
            before: components["schemas"]["PathStep"][];
            blockers: (components["schemas"]["Edge"] | components["schemas"]["Join"] | components["schemas"]["Limit"] | components["schemas"]["Items"] | components["schemas"]["Worker"] | components["schemas"]["Lease"] | components["schemas"]["Retry"] | components["schemas"]["Timer"] | components["schemas"]["Person"] | components["schemas"]["Signal"] | components["schemas"]["Child"] | components["schemas"]["Loop"] | components["schemas"]["Pause"] | components["schemas"]["Outputs"] | components["schemas"]["Wait"] | components["schemas"]["Missing"] | components["schemas"]["Deadline"] | components["schemas"]["Rollback"])[];
            error: components["schemas"]["Failure"] | null;
            values: {
                [key: string]: unknown;
            };
        };
        /** @description A visit that ended: how, which edges it took, and why. */
        PathStep: {
            node: string;
            visit: number;
            status: string;
            went: string[];
            why: string;
            reads: {
                [key: string]: string;
            };
        };
        LogLine: {
            node: string;
            visit: number;
            index: number;
            attempt: number;
            at_ms: number;
            source: string;
            text: string;
            undo: boolean;
        };
        RunDocument: {
            document: unknown;
            digest: string;
            workflow: string;
            version: number;
            revision: number;
        };
        Transcript: {
            run_id: string;
            node: string;
            visit: number;
            index: number;
            status: string;
            error: {
                [key: string]: string;
            } | null;
            prompt: string;
            memory: string[][];
            prefix: string;
            turns: components["schemas"]["TranscriptTurn"][];
            open_notes: string[];
            open_failures: components["schemas"]["FailedCall"][];
            lost_calls: number;
            usage: {
                [key: string]: number;
            };
            cost: number | null;
            calls: number;
            tool_calls: number;
            duration_ms: number;
            next_nodes: string[];
            reason: string;
        };
        TranscriptTurn: {
            number: number;
            seq: number;
            at_ms: number;
            attempt: number;
            model: string;
            provider: string;
            notes: string[];
            failed: components["schemas"]["FailedCall"][];
            text: string;
            refusal: string;
            calls: components["schemas"]["TranscriptCall"][];
            usage: {
                [key: string]: number;
            } | null;
            cost: number | null;
            duration_ms: number;
            finish_reason: string;
            request: string;
        };
        /** @description A call of the model that failed. */
        FailedCall: {
            code: string;
            message: string;
            at_ms: number;
            model: string;
            provider: string;
        };
        /** @description A call of a tool. */
        TranscriptCall: {
            name: string;
            arguments: unknown;
            status: string;
            result: unknown;
            error: string;
            unknown_outcome: boolean;
            reference: unknown;
            preview: unknown;
            child: string;
            waits_for: string;
            seq: number;
            duration_ms: number;
        };
        Comparison: {
            left: string;
            right: string;
            same: boolean;
            inputs_same: boolean;
            outputs_same: boolean;
            first_divergence: string | null;
            inputs: unknown[];
            nodes: {
                [key: string]: unknown;
            }[];
        };
        ShownOutput: {
            node: string;
            visit: number;
            index: number | null;
            status: string;
            size: number;
            digest: string;
            value: unknown;
            preview: string | null;
        };
        /** @description What an action would do to a run now. */
        Rehearsal: {
            seq: number;
            status: string;
            again: string[];
            cancelled: string[];
            skipped: string[];
            undone: string[];
            unsure: string[];
            events: string[];
            event_count: number;
        };
        SentSignal: {
            run_id: string;
            signal_id: string;
        };
        PatchOutcome: {
            applied: boolean;
            digest: string;
            revision: number;
            added: string[];
            removed: string[];
            changed: string[];
            rerun: string[];
            kept: string[];
            warnings: components["schemas"]["Problem"][];
            published: components["schemas"]["Published"] | null;
            needs_retry: boolean;
        };
        /** @description One thing that is wrong with the caller's input, precise enough to act on. */
        Problem: {
            code?: string;
            message?: string;
            path?: string;
            hint?: string;
            line?: number;
            column?: number;
        };
        Published: {
            name: string;
            version: number;
            digest: string;
            created: boolean;
            warnings: components["schemas"]["Problem"][];
            from_workers: string[];
        };
        BulkAnswer: {
            /** @enum {unknown} */
            action: "cancel" | "pause" | "resume" | "retry" | "rollback";
            dry_run: boolean;
            count: number;
            done: number;
            refused: number;
            skipped: number;
            more: boolean;
            runs: components["schemas"]["BulkRun"][];
        };
        BulkRun: {
            run_id: string;
            workflow: string;
            status: string;
            /** @enum {unknown} */
            result: "done" | "would be done" | "refused";
            code: string;
            problem: string;
        };
        /** @description What is wrong with a document, or what it would become. */
        Validation: {
            valid: boolean;
            name: string | null;
            nodes: number | null;
            digest: string | null;
            problems: components["schemas"]["Problem"][];
            warnings: components["schemas"]["Problem"][];
        };
        WorkflowRow: {
            name: string;
            version: number;
            digest: string;
            versions: number;
            tags: {
                [key: string]: number;
            };
            created_ms: number;
            updated_ms: number;
            description: string;
            weights: {
                [key: string]: {
                    [key: string]: number;
                };
            };
        };
        Version: {
            name: string;
            version: number;
            digest: string;
            document: string;
            at_ms: number;
            author: string;
            message: string;
            parent: number;
            patch: string | null;
            description: string;
        };
        TagMoved: {
            name: string;
            tag: string;
            version: number;
            was: number;
            at_ms: number;
            actor: string;
            message: string;
            weights: unknown[][];
        };
        /** @description The answer to a move of a tag; `version` is 0 when it was removed, `was` when it did not exist. */
        Tagged: {
            name: string;
            tag: string;
            version: number;
            was: number;
            weights: {
                [key: string]: number;
            };
            was_weights: {
                [key: string]: number;
            };
        };
        WorkflowDeletion: {
            name: string;
            versions: number;
        };
        /** @description An approval as lists show it; the form is read from the run. */
        ApprovalRow: {
            run_id: string;
            workflow: string;
            node: string;
            visit: number;
            index: number;
            status: string;
            title: string;
            description: string;
            approvers: string[];
            quorum: number;
            requested_ms: number;
            requester: string;
            four_eyes: boolean;
            votes: string[];
            delegated: unknown[][];
            expires_ms: number | null;
            on_timeout: string;
            escalated: boolean;
            url: string;
            decision: string;
            decided_by: string;
            decided_ms: number | null;
            comments: string;
        };
        /** @description The person who views an approval. */
        Decider: {
            person: string;
            refusal: components["schemas"]["Problem"] | null;
            expires_ms: number | null;
        };
        ApprovalReview: {
            approval_id?: string;
            run_id?: string;
            workflow?: string;
            node?: string;
            visit?: number;
            quorum?: number;
            requested_ms?: number;
            index?: number | null;
            expires_ms?: number | null;
            escalated_ms?: number | null;
            decided_ms?: number | null;
            title?: string;
            description?: string;
            requester?: string;
            on_timeout?: string;
            url?: string;
            comments?: string;
            decision?: string | null;
            decided_by?: string | null;
            on_behalf_of?: string | null;
            approvers?: string[];
            escalate_to?: string[];
            votes?: Record<string, never>[];
            delegated?: Record<string, never>[];
            four_eyes?: boolean;
            escalated?: boolean;
            /** @enum {unknown} */
            status?: "pending" | "decided" | "expired" | "cancelled";
            form?: unknown;
            /** @description What the node sees; a large value is described by its blob. Null for an earlier visit. */
            evidence?: {
                inputs?: unknown;
                nodes?: Record<string, never>;
                item?: unknown;
            } | null;
            /** @description By decision: the nodes that follow, whether conditions choose among them, and failure. */
            consequences?: Record<string, never>;
        };
        /** @description The result of a decision; repeating the same decision returns the same. */
        Decided: {
            approval_id: string;
            status: string;
            decision: string | null;
            next_nodes: string[];
        };
        ApprovalView: {
            approval_id?: string;
            run_id?: string;
            workflow?: string;
            node?: string;
            visit?: number;
            quorum?: number;
            requested_ms?: number;
            index?: number | null;
            expires_ms?: number | null;
            escalated_ms?: number | null;
            decided_ms?: number | null;
            title?: string;
            description?: string;
            requester?: string;
            on_timeout?: string;
            url?: string;
            comments?: string;
            decision?: string | null;
            decided_by?: string | null;
            on_behalf_of?: string | null;
            approvers?: string[];
            escalate_to?: string[];
            votes?: Record<string, never>[];
            delegated?: Record<string, never>[];
            four_eyes?: boolean;
            escalated?: boolean;
            /** @enum {unknown} */
            status?: "pending" | "decided" | "expired" | "cancelled";
            form?: unknown;
        };
        DecisionUrl: {
            url: string;
            person: string;
            expires_ms: number;
        };
        DeadLetterRow: {
            run_id: string;
            workflow: string;
            node: string;
            visit: number;
            index: number;
            attempts: number;
            code: string;
            message: string;
            at_ms: number;
            status: string;
            closed_by: string;
            closed_ms: number | null;
            reason: string;
        };
        /** @description The result of retrying dead letters, or what it would be. */
        Reprocessed: {
            matched: number;
            runs: components["schemas"]["ReprocessedRun"][];
            more: boolean;
        };
        ReprocessedRun: {
            run_id: string;
            letters: number;
            result: string;
            code: string;
            problem: string;
        };
        BlobInfo: {
            digest: string;
            size: number;
            since_ms: number;
            /** @enum {unknown} */
            state: "active" | "grace";
            kept: boolean;
            used_by: string[];
        };
        /** @description A worker as lists show it; times are those of the store's clock. */
        WorkerView: {
            name: string;
            /** @enum {unknown} */
            state: "alive" | "draining" | "silent" | "dead";
            host: string;
            pid: number;
            version: string;
            started_ms: number;
            beat_ms: number;
            queues: string[];
            types: string[];
            concurrency: number;
            holding: number;
            held: components["schemas"]["Held"][];
            finished: number;
            lacks: string[];
            blocked: components["schemas"]["Blockage"] | null;
        };
        Held: {
            run_id: string;
            kind: string;
            node: string;
            visit: number;
            index: number;
            since_ms: number;
        };
        /** @description Stored by position, in the worker's row. */
        Blockage: {
            ms: number;
            at_ms: number;
            run_id: string;
            node: string;
            visit: number;
            index: number;
        };
        /** @description The work of a tenant in one queue. */
        QueueView: {
            queue: string;
            ready: number;
            leased: number;
            later: number;
            oldest_ms: number | null;
        };
        ConcurrencyLimit: {
            name: string;
            limit: number;
        };
        /** @description A pipeline that was used often enough to become a tool; its lifted constants are parameters. */
        CompositeTool: {
            name: string;
            version: number;
            shape: string;
            description: string;
            parameters: {
                [key: string]: unknown;
            };
            pipeline: {
                [key: string]: unknown;
            }[];
            pinned: boolean;
            retired: boolean;
        };
        Schedule: {
            cron: string;
            every_ms: number;
            timezone: string;
            anchor_ms: number;
            start_at_ms: number | null;
            end_at_ms: number | null;
            workflow: string;
            inputs: unknown;
            labels: {
                [key: string]: string;
            };
            jitter_ms: number;
            /** @enum {unknown} */
            catch_up: "skip" | "all" | "none";
            /** @enum {unknown} */
            overlap: "allow" | "skip";
            description: string;
            name: string;
            /** @enum {unknown} */
            status: "active" | "paused" | "ended" | "deleted";
            created_ms: number;
            created_by: string;
            updated_ms: number;
            cursor_ms: number;
            next_ms: number | null;
            runs: number;
            skipped: number;
            last_run_id: string;
            last_due_ms: number | null;
            last_started_ms: number | null;
            last_error: components["schemas"]["Problem"] | null;
            last_error_ms: number | null;
            updated_by: string;
            next_times: number[];
        };
        /** @description The caller, as the credential of the request proves it. */
        Me: {
            tenant: string;
            name: string;
            roles: string[];
            permissions: string[];
            key_id: string;
            expires_ms: number | null;
            csrf_token: string;
        };
        /** @description A key as lists show it: never its secret. */
        KeyView: {
            id: string;
            label: string;
            roles: string[];
            /** @enum {unknown} */
            state: "live" | "expired" | "revoked";
            created_ms: number;
            created_by: string;
            expires_ms: number | null;
            revoked_ms: number | null;
            revoked_by: string;
        };
        CreatedKey: {
            key: string;
            view: components["schemas"]["KeyView"];
        };
        TenantView: {
            name: string;
            /** @enum {unknown} */
            state: "live" | "disabled";
            created_ms: number;
            created_by: string;
            disabled_ms: number | null;
            disabled_by: string;
        };
        /** @description One change. The hash covers all other fields and with `previous` all entries before. */
        AuditEntry: {
            at_ms: number;
            actor: string;
            action: string;
            subject: string;
            version: number;
            digest: string;
            detail: string;
            seq: number;
            previous: string;
            hash: string;
        };
        /** @description What `verify` found. */
        ChainCheck: {
            intact: boolean;
            entries: number;
            head: string;
            waiting: number;
            broken_seq: number | null;
            problem: string;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export interface operations {
    live: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        status: string;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    ready: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        status: string;
                        /**
                         * @description `full`: what was answered survives a power cut. `none`: it ends with the process.
                         * @enum {unknown}
                         */
                        durability: "full" | "reduced" | "none" | "unknown";
                        findings: Record<string, never>[];
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    explainError: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                code: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        code: string;
                        means: string;
                        do: string;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    metrics: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/plain": unknown;
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    countRuns: {
        parameters: {
            query?: {
                /** @description A query, such as `status:failed workflow:billing started>-2h`. */
                query?: string;
                /** @description Where counting ends. */
                at_most?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RunCount"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    summariseRuns: {
        parameters: {
            query?: {
                /** @description A query, such as `status:failed workflow:billing started>-2h`. */
                query?: string;
                /** @description Intervals of the histogram. */
                buckets?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RunSummary"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    groupFailures: {
        parameters: {
            query?: {
                /** @description A query, such as `status:failed workflow:billing started>-2h`. */
                query?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["FailureGroups"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    resolveRun: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                text: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ResolvedRun"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    getUsage: {
        parameters: {
            query?: {
                /** @description A date, or a time ago such as `30d`. */
                since?: string | null;
                /** @description Of one workflow. */
                workflow?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["UsageReport"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    findRuns: {
        parameters: {
            query?: {
                /** @description A query, such as `status:failed workflow:billing started>-2h`. */
                query?: string;
                /** @description `next` of the previous page. */
                after?: string | null;
                /** @description Maximum number of items per page. */
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: components["schemas"]["RunRow"][];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    startRun: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes it safe to repeat the request. */
                "Idempotency-Key"?: string | null;
                /** @description The W3C trace context that the spans of the run join. */
                traceparent?: string | null;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["StartRun"];
            };
        };
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["StartedRun"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    startRuns: {
        parameters: {
            query?: never;
            header?: {
                /** @description The W3C trace context that the spans of the run join. */
                traceparent?: string | null;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["StartBatch"];
            };
        };
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["StartedBatch"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    getRun: {
        parameters: {
            query?: {
                /** @description The run as it was after this event. */
                at?: number | null;
                /** @description Also the compiled workflow, its edges, and what nodes took, for a picture. */
                graph?: boolean;
                /** @description Include outputs of any size; without, they are null. */
                values?: boolean;
            };
            header?: never;
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RunView"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    getRunResult: {
        parameters: {
            query?: {
                /** @description Seconds to wait. */
                timeout?: number;
            };
            header?: never;
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RunView"];
                };
            };
            /** @description The run has not ended yet */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    getRunEvents: {
        parameters: {
            query?: {
                /** @description The seq of the last event you received. */
                after?: string;
                /** @description Maximum number of items per page. */
                limit?: number;
                /** @description Only events of this node. */
                node?: string;
                visit?: number | null;
                /** @description Only events of this item of a map, and of the map itself. */
                index?: number | null;
                /** @description Only events of these types. */
                type?: string[];
                /** @description Only events whose record contains this text. */
                contains?: string;
                /** @description Truncate values longer than 200 bytes. */
                brief?: boolean;
            };
            header?: never;
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: {
                            seq: number;
                            type: string;
                            at_ms: number;
                        }[];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    getRunPath: {
        parameters: {
            query?: {
                /** @description The run as it was after this event. */
                at?: number | null;
            };
            header?: never;
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: {
                            node: string;
                        }[];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    getRunTokens: {
        parameters: {
            query?: {
                /** @description The run as it was after this event. */
                at?: number | null;
            };
            header?: never;
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: {
                            from: string;
                            to: string;
                            visit: number;
                            hop: number;
                        }[];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    explainRun: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Explanation"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    explainNode: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                run_id: string;
                node: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NodeHistory"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    getRunLogs: {
        parameters: {
            query?: {
                node?: string | null;
                visit?: number | null;
                index?: number | null;
                attempt?: number | null;
                limit?: number;
            };
            header?: never;
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: components["schemas"]["LogLine"][];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    getRunDocument: {
        parameters: {
            query?: {
                /** @description Also as YAML, in `text`. */
                text?: boolean;
            };
            header?: never;
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RunDocument"] & {
                        text: string;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    getTranscript: {
        parameters: {
            query?: {
                /** @description By default the latest. */
                visit?: number | null;
                /** @description An item of a map. */
                index?: number | null;
            };
            header?: never;
            path: {
                run_id: string;
                node: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Transcript"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    compareRuns: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                run_id: string;
                other_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Comparison"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    streamRun: {
        parameters: {
            query?: {
                /** @description The seq of the last event you received. */
                after?: string;
                /** @description Also streamed parts of results, and progress. */
                live?: boolean;
                /** @description Also new log lines of handlers. */
                logs?: boolean;
            };
            header?: {
                /** @description The id of the last frame you received. */
                "Last-Event-ID"?: string | null;
            };
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/event-stream": unknown;
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    streamRuns: {
        parameters: {
            query?: {
                /** @description A query, such as `status:failed workflow:billing started>-2h`. */
                query?: string;
                /** @description The id of the last frame you received. */
                after?: string;
            };
            header?: {
                /** @description The id of the last frame you received. */
                "Last-Event-ID"?: string | null;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/event-stream": unknown;
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    getNodeOutput: {
        parameters: {
            query?: {
                /** @description An item of a map. */
                index?: number | null;
                /** @description The run as it was after this event. */
                at?: number | null;
            };
            header?: {
                Range?: string;
            };
            path: {
                run_id: string;
                node: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ShownOutput"];
                };
            };
            /** @description Bytes of the JSON text */
            206: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description There are no such bytes */
            416: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    getNodeInput: {
        parameters: {
            query?: {
                /** @description By default the latest. */
                visit?: number | null;
                /** @description An item of a map. */
                index?: number | null;
                /** @description The run as it was after this event. */
                at?: number | null;
            };
            header?: {
                Range?: string;
            };
            path: {
                run_id: string;
                node: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ShownOutput"];
                };
            };
            /** @description Bytes of the JSON text */
            206: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description There are no such bytes */
            416: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    getNodeItems: {
        parameters: {
            query?: {
                /** @description Only those with this status. */
                status?: ("PENDING" | "QUEUED" | "RUNNING" | "WAITING" | "COMPLETED" | "FAILED" | "SKIPPED" | "CANCELLED") | "";
                /** @description `next` of the previous page. */
                after?: string;
                /** @description Maximum number of items per page. */
                limit?: number;
                /** @description The run as it was after this event. */
                at?: number | null;
            };
            header?: never;
            path: {
                run_id: string;
                node: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: {
                            index: number;
                            status: string;
                            attempts: number;
                            error: Record<string, never> | null;
                        }[];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    getRunGraph: {
        parameters: {
            query?: {
                /** @description The run as it was after this event. */
                at?: number | null;
                format?: "json" | "svg";
                /** @description A looping node: show the graph at the end of one of its passes. */
                loop?: string | null;
                /** @description Which pass of `loop`. */
                pass?: number;
            };
            header?: never;
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "image/svg+xml": string;
                    "application/json": {
                        nodes: Record<string, never>[];
                        edges: Record<string, never>[];
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    getRunTimeline: {
        parameters: {
            query?: {
                /** @description The run as it was after this event. */
                at?: number | null;
            };
            header?: never;
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        begin_ms: number;
                        end_ms: number;
                        pauses: unknown[][];
                        /** @description Node, visit and item (-1 for none). */
                        last: unknown[] | null;
                        rows: Record<string, never>[];
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    cancelRun: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes it safe to repeat the request. */
                "Idempotency-Key"?: string | null;
            };
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["CancelRun"] | null;
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RunView"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    pauseRun: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes it safe to repeat the request. */
                "Idempotency-Key"?: string | null;
            };
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["Act"] | null;
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RunView"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    resumeRun: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes it safe to repeat the request. */
                "Idempotency-Key"?: string | null;
            };
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["Act"] | null;
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RunView"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    retryRun: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes it safe to repeat the request. */
                "Idempotency-Key"?: string | null;
            };
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["RetryRun"] | null;
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RunView"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    rewindRun: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes it safe to repeat the request. */
                "Idempotency-Key"?: string | null;
            };
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["RewindRun"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RunView"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    overrideNode: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes it safe to repeat the request. */
                "Idempotency-Key"?: string | null;
            };
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["OverrideNode"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RunView"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    rollBackRun: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes it safe to repeat the request. */
                "Idempotency-Key"?: string | null;
            };
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["Act"] | null;
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RunView"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    rehearseAction: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Rehearse"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Rehearsal"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    signalRun: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes it safe to repeat the request. */
                "Idempotency-Key"?: string | null;
            };
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["SendSignal"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SentSignal"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    relabelRun: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes it safe to repeat the request. */
                "Idempotency-Key"?: string | null;
            };
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["RelabelRun"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RunView"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    forkRun: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes it safe to repeat the request. */
                "Idempotency-Key"?: string | null;
            };
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ForkRun"];
            };
        };
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["StartedRun"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    patchRun: {
        parameters: {
            query?: never;
            header?: {
                /** @description Makes it safe to repeat the request. */
                "Idempotency-Key"?: string | null;
            };
            path: {
                run_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PatchRun"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PatchOutcome"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    actOnRuns: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["BulkRequest"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BulkAnswer"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    validateWorkflow: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                /**
                 * @example {
                 *       "document": {
                 *         "name": "hello",
                 *         "nodes": [
                 *           {
                 *             "id": "greet",
                 *             "type": "value",
                 *             "config": "Hello"
                 *           }
                 *         ]
                 *       },
                 *       "message": "the first version"
                 *     }
                 */
                "application/json": {
                    /** @description As a mapping, or as its text. */
                    document: Record<string, never> | string;
                    /** @description Why it is published. */
                    message?: string;
                };
                /**
                 * @example name: hello
                 *     nodes:
                 *       - {id: a, type: value}
                 */
                "application/yaml": string;
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Validation"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    listWorkflows: {
        parameters: {
            query?: {
                /** @description Terms, such as `tag:stable`. */
                query?: string;
                /** @description `next` of the previous page. */
                after?: string | null;
                /** @description Maximum number of items per page. */
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: components["schemas"]["WorkflowRow"][];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    publishWorkflow: {
        parameters: {
            query?: {
                /** @description Why it is published, where the body is YAML. */
                message?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                /**
                 * @example {
                 *       "document": {
                 *         "name": "hello",
                 *         "nodes": [
                 *           {
                 *             "id": "greet",
                 *             "type": "value",
                 *             "config": "Hello"
                 *           }
                 *         ]
                 *       },
                 *       "message": "the first version"
                 *     }
                 */
                "application/json": {
                    /** @description As a mapping, or as its text. */
                    document: Record<string, never> | string;
                    /** @description Why it is published. */
                    message?: string;
                };
                /**
                 * @example name: hello
                 *     nodes:
                 *       - {id: a, type: value}
                 */
                "application/yaml": string;
            };
        };
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Published"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    showWorkflow: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                reference: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Version"] & {
                        tags: {
                            [key: string]: number;
                        };
                        weights: {
                            [key: string]: {
                                [key: string]: number;
                            };
                        };
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    workflowDocument: {
        parameters: {
            query?: {
                format?: "json" | "yaml";
            };
            header?: never;
            path: {
                reference: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/yaml": Record<string, never>;
                    "application/json": Record<string, never>;
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    workflowGraph: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                reference: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    workflowPicture: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                reference: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "image/svg+xml": string;
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    workflowVersions: {
        parameters: {
            query?: {
                /** @description `next` of the previous page. */
                after?: string | null;
                /** @description Maximum number of items per page. */
                limit?: number;
            };
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: components["schemas"]["Version"][];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    diffWorkflows: {
        parameters: {
            query: {
                /** @description The other version. */
                to: string;
            };
            header?: never;
            path: {
                reference: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        left: Record<string, never>;
                        right: Record<string, never>;
                        /** @description A JSON Patch. */
                        document: Record<string, never>[];
                        graph: Record<string, never>;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    patchWorkflow: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                reference: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PatchWorkflowBody"];
            };
        };
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Published"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    workflowTags: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        [key: string]: number;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    workflowTagHistory: {
        parameters: {
            query?: {
                /** @description Only the moves of this tag. */
                tag?: string | null;
                /** @description `next` of the previous page. */
                after?: string | null;
                /** @description Maximum number of items per page. */
                limit?: number;
            };
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: components["schemas"]["TagMoved"][];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    moveTag: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
                tag: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["MoveTagBody"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Tagged"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    removeTag: {
        parameters: {
            query?: {
                message?: string;
            };
            header?: never;
            path: {
                name: string;
                tag: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Tagged"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    rollbackTag: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
                tag: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ReasonBody"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Tagged"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    deleteWorkflow: {
        parameters: {
            query?: {
                message?: string;
            };
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["WorkflowDeletion"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    listApprovals: {
        parameters: {
            query?: {
                /** @description Only approvals that ask the caller, one of the caller's roles, or anyone. */
                mine?: boolean;
                /** @description Only approvals that ask one of the caller's roles. */
                my_roles?: boolean;
                /** @description How they stand. */
                status?: ("pending" | "decided" | "expired" | "cancelled") | "all";
                /** @description Only approvals that expire within this many seconds. */
                due?: number | null;
                /** @description Only approvals that have expired or were escalated. */
                overdue?: boolean;
                /** @description Terms: `run:ID`, `workflow:NAME`, `approver:user:NAME`… */
                query?: string;
                /** @description `next` of the previous page. */
                after?: string | null;
                /** @description Maximum number of items per page. */
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: (components["schemas"]["ApprovalRow"] & {
                            approval_id: string;
                        })[];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    showApproval: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                approval_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ApprovalReview"] & {
                        decider: components["schemas"]["Decider"];
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    approvalVotes: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                approval_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: Record<string, never>[];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    approvalHistory: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                approval_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: Record<string, never>[];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    decideApproval: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                approval_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["DecideBody"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Decided"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    requestChanges: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                approval_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ChangesBody"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Decided"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    delegateApproval: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                approval_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["DelegateBody"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ApprovalView"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    createDecisionLink: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                approval_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["LinkBody"];
            };
        };
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["DecisionUrl"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    showDecisionLink: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                token: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ApprovalReview"] & {
                        decider: components["schemas"]["Decider"];
                    };
                };
            };
            /** @description Where the page is, for a browser */
            303: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    decideByLink: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                token: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["DecideBody"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Decided"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    listDeadLetters: {
        parameters: {
            query?: {
                /** @description Terms: `status:open`, `run:ID`, `workflow:NAME`, `node:ID`, `code:CODE`. */
                query?: string;
                /** @description `next` of the previous page. */
                after?: string | null;
                /** @description Maximum number of items per page. */
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: (components["schemas"]["DeadLetterRow"] & {
                            dead_letter_id: string;
                        })[];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    showDeadLetter: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                dead_letter_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        dead_letter_id: string;
                        run_id: string;
                        workflow: string;
                        node: string;
                        status: string;
                        reason?: string;
                        visit: number;
                        attempts: number;
                        at_ms?: number;
                        index?: number | null;
                        closed_ms?: number | null;
                        closed_by?: string | null;
                        error: Record<string, never> | null;
                        /** @description The node's config as its last attempt saw it; null if it cannot be rendered. */
                        input?: unknown;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    discardDeadLetter: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                dead_letter_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["DiscardBody"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        dead_letter_id: string;
                        run_id: string;
                        workflow: string;
                        node: string;
                        status: string;
                        reason?: string;
                        visit: number;
                        attempts: number;
                        at_ms?: number;
                        index?: number | null;
                        closed_ms?: number | null;
                        closed_by?: string | null;
                        error: Record<string, never> | null;
                        /** @description The node's config as its last attempt saw it; null if it cannot be rendered. */
                        input?: unknown;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    reprocessDeadLetters: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ReprocessBody"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Reprocessed"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    listBlobs: {
        parameters: {
            query?: {
                /** @description `active`, or `grace` for those about to be collected. */
                state?: ("active" | "grace") | null;
                /** @description `next` of the previous page. */
                after?: string | null;
                /** @description Maximum number of items per page. */
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: components["schemas"]["BlobInfo"][];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    putBlob: {
        parameters: {
            query?: {
                /** @description The name of the file. */
                name?: string;
                /** @description Never collect it. */
                keep?: boolean;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** @description The bytes; Content-Type says what they are. */
        requestBody: {
            content: {
                "application/octet-stream": string;
            };
        };
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        $blob: string;
                        size: number;
                        media_type: string;
                        name: string;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    blobInfo: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                digest: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BlobInfo"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    getBlob: {
        parameters: {
            query?: {
                /** @description What the bytes are, as their description says. */
                media_type?: string;
                /** @description The name of the file. */
                name?: string;
            };
            header?: never;
            path: {
                digest: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "*/*": string;
                };
            };
            /** @description A range of the bytes */
            206: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description The client has them */
            304: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    listWorkers: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: components["schemas"]["WorkerView"][];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    listQueues: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: components["schemas"]["QueueView"][];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    listNodeTypes: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: {
                            type: string;
                            name: string;
                            version?: string;
                            title?: string;
                            icon?: string;
                            description?: string;
                            queue: string;
                            major: number;
                            /** @description This server has it; otherwise a worker has described it. */
                            here: boolean;
                            /** @description Live workers that can run it. */
                            workers: number;
                            last_seen_ms?: number | null;
                            image?: string;
                            waits?: boolean;
                            capabilities?: Record<string, never>;
                            secret_fields?: string[];
                            exits?: string[];
                            schemas?: string[];
                            config_schema?: unknown;
                            input_schema?: unknown;
                            output_schema?: unknown;
                        }[];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    showNodeType: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        type: string;
                        name: string;
                        version?: string;
                        title?: string;
                        icon?: string;
                        description?: string;
                        queue: string;
                        major: number;
                        /** @description This server has it; otherwise a worker has described it. */
                        here: boolean;
                        /** @description Live workers that can run it. */
                        workers: number;
                        last_seen_ms?: number | null;
                        image?: string;
                        waits?: boolean;
                        capabilities?: Record<string, never>;
                        secret_fields?: string[];
                        exits?: string[];
                        schemas?: string[];
                        config_schema?: unknown;
                        input_schema?: unknown;
                        output_schema?: unknown;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    listConcurrencyLimits: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: components["schemas"]["ConcurrencyLimit"][];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    setConcurrencyLimit: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["LimitBody"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ConcurrencyLimit"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    removeConcurrencyLimit: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    listTools: {
        parameters: {
            query?: {
                /** @description List retired tools instead of those in use. */
                retired?: boolean;
                /** @description `next` of the previous page. */
                after?: string | null;
                /** @description Maximum number of items per page. */
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: components["schemas"]["CompositeTool"][];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    showTool: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CompositeTool"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    changeTool: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ToolBody"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CompositeTool"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    listSchedules: {
        parameters: {
            query?: {
                /** @description status:active, workflow:NAME or failing */
                term?: string[];
                /** @description `next` of the previous page. */
                after?: string | null;
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: components["schemas"]["Schedule"][];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    createSchedule: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewSchedule"];
            };
        };
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Schedule"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    showSchedule: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Schedule"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    deleteSchedule: {
        parameters: {
            query?: {
                reason?: string;
            };
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        deleted: string;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    changeSchedule: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ScheduleChange"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Schedule"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    scheduleTimes: {
        parameters: {
            query?: {
                count?: number;
            };
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        name: string;
                        timezone: string;
                        times_ms: number[];
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    pauseSchedule: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["Why"] | null;
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Schedule"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    resumeSchedule: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["Why"] | null;
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Schedule"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    triggerSchedule: {
        parameters: {
            query?: never;
            header?: {
                "idempotency-key"?: string | null;
            };
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        run_id: string;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    me: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Me"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    beginSession: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Me"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    endSession: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    listKeys: {
        parameters: {
            query?: {
                /** @description `next` of the previous page. */
                after?: string | null;
                /** @description Maximum number of items per page. */
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: components["schemas"]["KeyView"][];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    createKey: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewKeyBody"];
            };
        };
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CreatedKey"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    revokeKey: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                key_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["KeyView"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    listTenants: {
        parameters: {
            query?: {
                /** @description `next` of the previous page. */
                after?: string | null;
                /** @description Maximum number of items per page. */
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: components["schemas"]["TenantView"][];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    createTenant: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewTenantBody"];
            };
        };
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TenantView"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    disableTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TenantView"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    enableTenant: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TenantView"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    listAudit: {
        parameters: {
            query?: {
                actor?: string | null;
                /** @description `runs.cancel`, `workflows.publish` … */
                action?: string | null;
                subject?: string | null;
                /** @description `2h` (ago), or a date. */
                since?: string | null;
                /** @description `2h` (ago), or a date. */
                until?: string | null;
                /** @description `next` of the previous page. */
                after?: string | null;
                /** @description Maximum number of items per page. */
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        items: components["schemas"]["AuditEntry"][];
                        next: string | null;
                    };
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
    verifyAudit: {
        parameters: {
            query?: {
                /** @description The head of an earlier check, kept elsewhere. */
                head?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ChainCheck"];
                };
            };
            /** @description A problem */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": {
                        type: string;
                        title: string;
                        status: number;
                        detail: string;
                        code: string;
                        path?: string;
                        hint?: string;
                        problems: Record<string, never>[];
                    };
                };
            };
        };
    };
}
