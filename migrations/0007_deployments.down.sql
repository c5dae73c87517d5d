DROP TABLE IF EXISTS deployment_repos;
DROP TABLE IF EXISTS deployments;
